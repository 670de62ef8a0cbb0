#!lua
-- Bring the unique viewers that the database has kept back into the sketch that counts on.
--
-- KEYS
--   [1] HyperLogLog: unique viewers of a video
--   [2] HyperLogLog: where the kept sketch lies meanwhile
-- ARGV
--   [1] the kept sketch, as GET once answered it
--   [2] seconds for which unique viewers are kept
-- Returns "" when it is in, or what Redis said where one of the two is no sketch
--
-- Example, with the sketch of { "ann", "ben" } and unique viewers { "ben", "cem" }:
--   KEYS { "video:views:uv:{0}:42", "video:views:sketch:{0}:42" }
--   ARGV { <sketch>, "2592000" }  ->  "", and PFCOUNT of the first key is 3
assert(#KEYS == 2, 'uv_merge: want 2 keys')
assert(#ARGV == 2, 'uv_merge: want 2 args')

redis.call('SET', KEYS[2], ARGV[1], 'EX', 60)
local merged = redis.pcall('PFMERGE', KEYS[1], KEYS[1], KEYS[2])
redis.call('DEL', KEYS[2])
if merged.err then
  return merged.err
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return ''
