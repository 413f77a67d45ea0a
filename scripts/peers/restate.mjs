// Requests to a handler of Restate's that does one thing which is remembered.

import { once as event } from "node:events";
import http from "node:http";
import http2 from "node:http2";
import { closedLoop, converse, load, pause, run } from "./clients.mjs";

const restate = load("@restatedev/restate-sdk");
const { ADMIN, INGRESS, SERVICE } = process.env;
const agent = new http.Agent({ keepAlive: true });

const steps = restate.service({
  name: "Steps",
  handlers: { one: (context, number) => context.run("step", async () => number + 1) },
});

function post(port, path, value) {
  const body = JSON.stringify(value);
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    const request = http.request({ host: "127.0.0.1", port, path, method: "POST", agent, headers }, (reply) => {
      let text = "";
      reply.setEncoding("utf8").on("data", (more) => (text += more));
      reply.on("end", () => (reply.statusCode < 300 ? resolve(text) : reject(new Error(`${path}: ${reply.statusCode} ${text}`))));
    });
    request.on("error", reject).end(body);
  });
}

// The server takes a while after its ports are open.
async function insist(work) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work();
    } catch (error) {
      if (attempt === 100) throw error;
      await pause(200);
    }
  }
}

async function once() {
  const result = await post(INGRESS, "/Steps/one", 1);
  if (result !== "2") throw new Error(`a handler came to ${result}`);
}

run(async () => {
  const service = http2.createServer(restate.createEndpointHandler({ services: [steps] }));
  await event(service.listen(Number(SERVICE), "127.0.0.1"), "listening");
  await insist(() => post(ADMIN, "/deployments", { uri: `http://127.0.0.1:${SERVICE}` }));
  await insist(once);
  await closedLoop(2, 2, once);
  const about = { peer: "Restate 1.7, a handler with one step", durable: true };
  await converse(about, (clients, seconds) => closedLoop(clients, seconds, once));
});
