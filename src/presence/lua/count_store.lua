-- Store the count of a video of more than one shard, only over an older one.
--
-- One from the future is not newer: the clock was set back since it was stored.
--
-- KEYS
--   [1] string: "<viewers> <Unix seconds at which the walk began>"
-- ARGV
--   [1] viewers; "0" deletes
--   [2] Unix seconds at which the walk began
--   [3] life in seconds
--   [4] now, Unix seconds
-- Returns 1 where it was stored or deleted, 0 where a newer walk's count is there
--
-- Example, nothing stored: KEYS { "video:online-count:42" }  ARGV { "7", "5", "600", "6" }  ->  1
assert(#KEYS == 1, 'count_store: want 1 key')
assert(#ARGV == 4, 'count_store: want 4 args')

local stored = redis.call('GET', KEYS[1])
if stored then
  local began = tonumber(string.match(stored, ' (%d+)$') or nil)
  if began and began > tonumber(ARGV[2]) and began <= tonumber(ARGV[4]) then
    return 0
  end
end
if ARGV[1] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'EX', ARGV[3])
end
return 1
