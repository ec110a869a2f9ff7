// What both clients go through; each is wrapped so that one journey is told once.
// The test restarts the server when this prints "restart", and writes a line when it is up again.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";

/** Resolves when the test has written a line. */
function told() {
  return new Promise((resolve) => {
    const lines = createInterface({ input: process.stdin });
    lines.once("line", () => {
      lines.close();
      process.stdin.destroy(); // open, it would keep the process alive
      resolve();
    });
  });
}

/**
 * Produce, read as a group, claim, give back, acknowledge; after a restart everything stands as it stood.
 *
 * @param client has add, createGroup, read (new entries of a consumer), ack, claim, autoclaim, nack, owners, lag, length,
 *   waitForNext (blocks at the stream's end), info
 */
export async function journey(client) {
  const ids = [];
  for (let number = 0; number < 4; number++) ids.push(await client.add("orders", { item: `tea ${number}` }));
  assert.equal(await client.length("orders"), 4);
  await client.createGroup("orders", "billing");

  const got = await client.read("orders", "billing", "anna", 3);
  assert.deepEqual(got, ids.slice(0, 3).map((id, number) => [id, { item: `tea ${number}` }]));
  assert.equal(await client.ack("orders", "billing", ids[0]), 1);
  assert.deepEqual(await client.claim("orders", "billing", "bert", ids[1]), [got[1]]);
  assert.deepEqual(await client.autoclaim("orders", "billing", "carl", ids[2]), ["0-0", [got[2]]]);
  assert.equal(await client.nack("orders", "billing", ids[2]), 1);

  const before = { owners: await client.owners("orders", "billing"), lag: await client.lag("orders") };
  assert.deepEqual(before, { owners: [[ids[1], "bert", 2], [ids[2], "", 2]], lag: 1 });
  await assert.rejects(() => client.createGroup("orders", "billing"), /BUSYGROUP Consumer Group name already exists/);

  const waiting = client.waitForNext("orders");
  while (!(await client.info()).includes("blocked_clients:1")) await new Promise((resolve) => setTimeout(resolve, 10));
  ids.push(await client.add("orders", { item: "tea 4" }));
  assert.deepEqual(await waiting, [[ids[4], { item: "tea 4" }]]);

  console.log("restart");
  await told();

  assert.deepEqual(await client.owners("orders", "billing"), before.owners);
  assert.equal(await client.lag("orders"), 2);
  assert.deepEqual(await client.read("orders", "billing", "anna", 1), [[ids[3], { item: "tea 3" }]]);
  await client.add("orders", { item: "tea 5" });
  assert.equal(await client.length("orders"), 6);
  await client.close();
  console.log("done");
}
