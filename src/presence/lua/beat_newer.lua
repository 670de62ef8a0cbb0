-- Write beats that are late, each only over an older one.
--
-- Another instance may have written a newer beat of the same viewer meanwhile; a plain HSET would
-- put the old time over it.
--
-- KEYS
--   [1] hash: viewer -> last beat, Unix seconds
-- ARGV
--   [1], [2] viewer and time; [3], [4] the next, and so on
-- Returns how many were written
--
-- Example, hash { a = "100" }: KEYS { "video:online:42:0" }  ARGV { "a", "90", "b", "95" }  ->  1
assert(#KEYS == 1, 'beat_newer: want 1 key')
assert(#ARGV > 0 and #ARGV % 2 == 0, 'beat_newer: want pairs of args')

local written = 0
for index = 1, #ARGV, 2 do
  local stored = tonumber(redis.call('HGET', KEYS[1], ARGV[index]) or nil)
  if not stored or tonumber(ARGV[index + 1]) > stored then
    redis.call('HSET', KEYS[1], ARGV[index], ARGV[index + 1])
    written = written + 1
  end
end
return written
