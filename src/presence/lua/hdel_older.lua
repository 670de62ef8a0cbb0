-- Remove viewers who left, unless they came back since.
--
-- KEYS
--   [1] hash: viewer -> last beat, Unix seconds
-- ARGV
--   [1], [2] viewer and the time of leaving; [3], [4] the next, and so on
-- Returns how many were removed: those whose stored time is at most the given one, or no number
--
-- Example, hash { a = "100", b = "100" }:
--   KEYS { "video:online:42:0" }  ARGV { "a", "100", "b", "99" }  ->  1
assert(#KEYS == 1, 'hdel_older: want 1 key')
assert(#ARGV > 0 and #ARGV % 2 == 0, 'hdel_older: want pairs of args')

local removed = 0
for index = 1, #ARGV, 2 do
  local stored = redis.call('HGET', KEYS[1], ARGV[index])
  if stored and (tonumber(stored) or 0) <= tonumber(ARGV[index + 1]) then
    removed = removed + redis.call('HDEL', KEYS[1], ARGV[index])
  end
end
return removed
