-- Change in how many shards a video's viewers are, or forget that it ever had more than one.
--
-- Only if the entry is still the one that was looked at, and that of all videos as well: what a video's own
-- number stands for depends on it. The number that was in force becomes a former
-- one, minded until nobody can be there any more; former ones whose time is over are dropped.
--
-- KEYS
--   [1] hash: videoId, or "*" for all videos -> "<now> <former>:<until> <former>:<until>...", where a
--       number is a power of two or, for "*", "auto"; until is in Unix seconds
--   [2] string: grows with every change. It begins with the time in ms, so that after a loss it
--       never comes by a number again that somebody remembers
-- ARGV
--   [1] the field
--   [2] the value that was looked at; empty for none
--   [3] the number from now on; empty to drop the field
--   [4] the number in force where none is stored
--   [5] for how many seconds the number of before is minded
--   [6] the time in Unix ms; empty: Redis's own TIME (the rule; tests hand in theirs)
--   [7] the value of "*" that was looked at; empty for none
-- Returns 1, or 0 where a value is another by now and nothing was changed
--
-- Example, nothing stored: KEYS { "video:{shards}:map", "video:{shards}:version" }
--   ARGV { "42", "", "64", "1", "620", "5000", "" }  ->  1, and the value is "64 1:625"
assert(#KEYS == 2, 'reshard: want 2 keys')
assert(#ARGV == 7, 'reshard: want 7 args')

local stored = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if stored ~= ARGV[2] or (redis.call('HGET', KEYS[1], '*') or '') ~= ARGV[7] then
  return 0
end

local now = tonumber(ARGV[6])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('SET', KEYS[2], string.format('%d', now))
end
redis.call('INCR', KEYS[2])

if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return 1
end
local seconds = math.floor(now / 1000)
local parts = { ARGV[3] }
local before = string.match(stored, '^%w+') or ARGV[4]
if before ~= ARGV[3] then
  parts[2] = before .. ':' .. string.format('%d', seconds + ARGV[5])
end
for former, until_ in string.gmatch(stored, ' (%w+):(%d+)') do
  if former ~= ARGV[3] and former ~= before and tonumber(until_) > seconds then
    parts[#parts + 1] = former .. ':' .. until_
  end
end
redis.call('HSET', KEYS[1], ARGV[1], table.concat(parts, ' '))
return 1
