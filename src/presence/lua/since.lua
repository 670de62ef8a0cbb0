-- Say since when presence data has been here without a gap.
--
-- Redis that restarted, or another node that took over, may hold older data than was written; and
-- data may be gone. Whoever notices first dates the gap; readers then mistrust low numbers for a while.
-- A stamp from the future (the clock was set back) becomes one of now, or they would do so for long.
--
-- KEYS
--   [1] string: "<Unix seconds> <run id> <new|again>"
-- ARGV
--   [1] run id of the server this script runs on, as the caller was told on this connection
--   [2] what to write where nothing is stored: "new" (nobody was here) or "again" (it was lost);
--       "reset" writes "again" whatever is stored (nobody swept for too long)
--   [3] the time in Unix ms; empty: Redis's own TIME (the rule; tests hand in theirs)
--   [4] the stamp's time, Unix seconds, that the caller knew before; empty for none. One who knows an
--       older stamp knows that there was data, whatever a newcomer took a "new" one for.
-- Returns the stored string after the call
--
-- Example, nothing stored: KEYS { "video:since:{0}" }  ARGV { "r1", "new", "5000", "" }  ->  "5 r1 new"
assert(#KEYS == 1, 'since: want 1 key')
assert(#ARGV == 4, 'since: want 4 args')

local now = ARGV[3] == '' and redis.call('TIME')[1] or string.format('%d', ARGV[3] / 1000)
local stored = redis.call('GET', KEYS[1])
if stored and ARGV[2] ~= 'reset' then
  local at, run, kind = string.match(stored, '^(%d+) (%S+) (%a+)$')
  local known = tonumber(ARGV[4])
  local mistaken = kind == 'new' and known and known < tonumber(at)
  if run == ARGV[1] and tonumber(at) <= tonumber(now) + 2 and not mistaken then
    return stored
  end
end

local kind = 'again'
if not stored and ARGV[2] == 'new' then
  kind = 'new'
end
local value = now .. ' ' .. ARGV[1] .. ' ' .. kind
redis.call('SET', KEYS[1], value)
return value
