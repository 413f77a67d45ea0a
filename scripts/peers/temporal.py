"""Workflows of Temporal that do one thing and end."""

import asyncio
import os
import time
import uuid
from datetime import timedelta

import clients
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "bench"
AT_ONCE = 200


@activity.defn
async def step(number: int) -> int:
    return number + 1


@workflow.defn
class OneStep:
    @workflow.run
    async def run(self, number: int) -> int:
        return await workflow.execute_activity(step, number, start_to_close_timeout=timedelta(minutes=1))


async def connect():
    for _ in range(100):
        try:
            return await Client.connect(f"127.0.0.1:{os.environ['PORT']}")
        except RuntimeError:
            await asyncio.sleep(0.1)
    raise RuntimeError("the dev server takes no connections")


async def measure(temporal, count, seconds):
    times = []
    began = time.perf_counter()

    async def client():
        while time.perf_counter() < began + seconds:
            sent = time.perf_counter()
            name = str(uuid.uuid4())
            result = await temporal.execute_workflow(OneStep.run, 1, id=name, task_queue=QUEUE)
            if result != 2:
                raise RuntimeError(f"a workflow came to {result}")
            times.append(time.perf_counter() - sent)

    await asyncio.gather(*(client() for _ in range(count)))
    return times, time.perf_counter() - began


async def main():
    temporal = await connect()
    worker = Worker(
        temporal,
        task_queue=QUEUE,
        workflows=[OneStep],
        activities=[step],
        # Its sandbox costs time on every workflow, and nothing here needs one.
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=AT_ONCE,
        max_concurrent_workflow_tasks=AT_ONCE,
    )
    async with worker:
        await measure(temporal, 2, 2)
        clients.say({"peer": "Temporal's dev server on a SQLite file, a workflow with one step", "durable": True})
        # The worker must not stand still while nobody asks.
        while asked := await asyncio.to_thread(clients.question):
            clients.answer(*await measure(temporal, *asked))


try:
    asyncio.run(main())
    # The SDK's own threads can abort an interpreter that tidies up.
    os._exit(0)
except Exception as error:
    clients.say({"cannot": str(error)[:300]})
    raise
