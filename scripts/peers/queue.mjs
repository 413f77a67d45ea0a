// Jobs of graphile-worker that do nothing but say when they began.

import { converse, load, pause, run } from "./clients.mjs";

const { Logger, makeWorkerUtils, run: work } = load("graphile-worker");
const { Pool } = load("pg");
const EVERY_MS = Number(process.env.EVERY_MS);
const PATIENCE_MS = 10_000;

run(async () => {
  const pgPool = new Pool({ connectionString: process.env.DATABASE_URL, max: 20 });
  const report = (error) => console.error(error);
  pgPool.on("error", report).on("connect", (client) => client.on("error", report));
  const logger = new Logger(() => () => {});
  const queue = await makeWorkerUtils({ pgPool, logger });
  await queue.migrate();
  const began = new Map();
  const taskList = { note: async ({ number }) => void began.set(number, performance.now()) };
  const worker = await work({ pgPool, logger, taskList, concurrency: 8, noHandleSignals: true });

  let number = 0;
  const measure = async (clients, seconds) => {
    const added = new Map();
    const start = performance.now();
    for (let next = start; next < start + seconds * 1000; next += EVERY_MS) {
      await pause(Math.max(0, next - performance.now()));
      added.set(number, performance.now());
      await queue.addJob("note", { number });
      number += 1;
    }
    const lasted = (performance.now() - start) / 1000;
    for (let waited = 0; [...added.keys()].some((job) => !began.has(job)); waited += 50) {
      if (waited > PATIENCE_MS) throw new Error("some jobs were never begun");
      await pause(50);
    }
    return { times: [...added].map(([job, at]) => began.get(job) - at), lasted };
  };

  await measure(1, 1);
  await converse({ peer: "graphile-worker 0.18", durable: true }, measure);
  await worker.stop();
  await queue.release();
  await pgPool.end();
});
