// The conversation of a peer whose clients are written in JavaScript: a question a line, an answer a line.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

export { pause };

// What was installed for this peer.
export const load = createRequire(process.env.MODULES);

export const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

function quantile(times, share) {
  const ordered = [...times].sort((a, b) => a - b);
  return ordered[Math.min(Math.floor(ordered.length * share), ordered.length - 1)];
}

// Says what it is, then answers by what `measure` gives: how long each took in milliseconds, and for how many seconds all lasted.
export async function converse(about, measure) {
  say(about);
  for await (const line of createInterface({ input: process.stdin })) {
    const [clients, seconds] = line.split(" ").map(Number);
    const { times, lasted } = await measure(clients, seconds);
    say({ rate: times.length / lasted, p50_ms: quantile(times, 0.5), p99_ms: quantile(times, 0.99) });
  }
}

// So many at once, each again as soon as it is through.
export async function closedLoop(clients, seconds, once) {
  const times = [];
  const began = performance.now();
  const client = async () => {
    while (performance.now() < began + seconds * 1000) {
      const sent = performance.now();
      await once();
      times.push(performance.now() - sent);
    }
  };
  await Promise.all(Array.from({ length: clients }, client));
  return { times, lasted: (performance.now() - began) / 1000 };
}

export function run(main) {
  main().then(
    () => process.exit(0),
    (error) => {
      say({ cannot: String(error).slice(0, 300) });
      console.error(error);
      process.exit(1);
    },
  );
}
