-- End a sweep, if the lock is still mine: publish the partition's ranking and when the pass began, and
-- keep the lock until the next pass may begin.
--
-- KEYS
--   [1] string: the lock, the owner's token
--   [2] string: when the last full sweep began, Unix seconds
--   [3] zset: the most watched videos -> count; replaced whole, gone when empty
-- ARGV
--   [1] my token
--   [2] when the pass began, Unix seconds
--   [3] milliseconds from now until the lock runs out
--   [4], [5] count and video; and so on
-- Returns 1, or 0 where the lock is lost and nothing was written
--
-- Example, lock "t": KEYS { "task:lock:sweep:{0}", "video:swept:{0}", "video:rank:{0}" }
--   ARGV { "t", "5", "54000", "7", "42" }  ->  1
assert(#KEYS == 3, 'finish: want 3 keys')
assert(#ARGV >= 3 and #ARGV % 2 == 1, 'finish: want 3 args and pairs')

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[3])
if #ARGV > 3 then
  redis.call('ZADD', KEYS[3], unpack(ARGV, 4))
end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
