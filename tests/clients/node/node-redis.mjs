// node-redis, unmodified: node node-redis.mjs <url> <2 or 3>
import { createClient } from "redis";
import { journey } from "./journey.mjs";

const client = createClient({ url: process.argv[2], RESP: Number(process.argv[3]) });
const blocking = client.duplicate();
for (const each of [client, blocking]) {
  each.on("error", () => {}); // it connects again by itself
  await each.connect();
}

const rows = (entries) => entries.map((entry) => [entry.id, { ...entry.message }]);
// RESP2 gives an array of streams, RESP3 a map
const only = (reply) => (Array.isArray(reply) ? reply[0].messages : Object.values(reply)[0]);

await journey({
  add: (key, fields) => client.xAdd(key, "*", fields),
  length: (key) => client.xLen(key),
  createGroup: (key, group) => client.xGroupCreate(key, group, "0"),
  read: async (key, group, consumer, count) =>
    rows(only(await client.xReadGroup(group, consumer, { key, id: ">" }, { COUNT: count }))),
  waitForNext: async (key) => rows(only(await blocking.xRead({ key, id: "$" }, { BLOCK: 20000 }))),
  info: () => client.info("clients"),
  ack: (key, group, id) => client.xAck(key, group, id),
  claim: async (key, group, consumer, id) => rows(await client.xClaim(key, group, consumer, 0, id)),
  autoclaim: async (key, group, consumer, start) => {
    const reply = await client.xAutoClaim(key, group, consumer, 0, start);
    return [reply.nextId, rows(reply.messages)];
  },
  nack: (key, group, id) => client.xNack(key, group, "FAIL", id),
  owners: async (key, group) =>
    (await client.xPendingRange(key, group, "-", "+", 10)).map((row) => [row.id, row.consumer, row.deliveriesCounter]),
  lag: async (key) => (await client.xInfoGroups(key))[0].lag,
  close: () => Promise.all([client.close(), blocking.close()]),
});
