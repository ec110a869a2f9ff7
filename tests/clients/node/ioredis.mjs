// ioredis, unmodified: node ioredis.mjs <url>
import { Redis } from "ioredis";
import { journey } from "./journey.mjs";

const redis = new Redis(process.argv[2]);
const blocking = new Redis(process.argv[2]);
for (const each of [redis, blocking]) each.on("error", () => {}); // it connects again by itself

const pairs = (flat) => Object.fromEntries(flat.flatMap((_, at) => (at % 2 ? [] : [[flat[at], flat[at + 1]]])));
const rows = (entries) => entries.map(([id, flat]) => [id, pairs(flat)]);

await journey({
  add: (key, fields) => redis.xadd(key, "*", ...Object.entries(fields).flat()),
  length: (key) => redis.xlen(key),
  createGroup: (key, group) => redis.xgroup("CREATE", key, group, "0"),
  read: async (key, group, consumer, count) =>
    rows((await redis.xreadgroup("GROUP", group, consumer, "COUNT", count, "STREAMS", key, ">"))[0][1]),
  waitForNext: async (key) => rows((await blocking.xread("BLOCK", 20000, "STREAMS", key, "$"))[0][1]),
  info: () => redis.info("clients"),
  ack: (key, group, id) => redis.xack(key, group, id),
  claim: async (key, group, consumer, id) => rows(await redis.xclaim(key, group, consumer, 0, id)),
  autoclaim: async (key, group, consumer, start) => {
    const [cursor, entries] = await redis.xautoclaim(key, group, consumer, 0, start);
    return [cursor, rows(entries)];
  },
  nack: (key, group, id) => redis.call("XNACK", key, group, "FAIL", "IDS", 1, id),
  owners: async (key, group) =>
    (await redis.xpending(key, group, "-", "+", 10)).map(([id, consumer, , count]) => [id, consumer, count]),
  lag: async (key) => pairs((await redis.xinfo("GROUPS", key))[0]).lag,
  close: () => Promise.all([redis.quit(), blocking.quit()]),
});
