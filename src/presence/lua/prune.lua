-- Walk one step through a shard of viewers and drop those who left.
--
-- Scan and delete are one atomic step, so a beat can't fall between them. A time in the future
-- (a clock was set back) becomes the present, or that viewer would stay for as long as the jump.
--
-- KEYS
--   [1] hash: viewer -> last beat, Unix seconds
-- ARGV
--   [1] cursor, "0" to begin
--   [2] deadline, Unix seconds: a viewer whose last beat is earlier is dropped
--   [3] now, Unix seconds: a last beat that is later is set to it
--   [4] how many fields to look at, about
--   [5] life in seconds for a hash that has none
--   [6] a hashtable of at most so many short fields is rewritten: Redis never turns one back into
--       a listpack by itself, and that takes a fifth of the memory; "0" for never
-- Returns { cursor, removed, corrupt, left }
--   cursor   "0" when the walk is complete
--   removed  viewers dropped in this step
--   corrupt  fields dropped because their value was no number
--   left     viewers now in the hash
--
-- Example, hash { a = "100", b = "900" }, deadline 400:
--   KEYS { "video:online:42:0" }  ARGV { "0", "400", "1000", "500", "750", "0" }  ->  { "0", 1, 0, 1 }
assert(#KEYS == 1, 'prune: want 1 key')
assert(#ARGV == 6, 'prune: want 6 args')

local key = KEYS[1]
local deadline, now = tonumber(ARGV[2]), tonumber(ARGV[3])
local page = redis.call('HSCAN', key, ARGV[1], 'COUNT', ARGV[4])
local stale, corrupt = {}, 0
for index = 1, #page[2], 2 do
  local seen = tonumber(page[2][index + 1])
  if not seen then
    corrupt = corrupt + 1
    stale[#stale + 1] = page[2][index]
  elseif seen < deadline then
    stale[#stale + 1] = page[2][index]
  elseif seen > now then
    redis.call('HSET', key, page[2][index], ARGV[3])
  end
end

-- A page may repeat a field: what counts as removed is what HDEL says. unpack has a limit.
local gone = 0
for first = 1, #stale, 1000 do
  gone = gone + redis.call('HDEL', key, unpack(stale, first, math.min(first + 999, #stale)))
end

local left = redis.call('HLEN', key)
if left > 0 and redis.call('TTL', key) == -1 then
  redis.call('EXPIRE', key, ARGV[5])
end

local most = tonumber(ARGV[6])
if page[1] == '0' and left > 0 and left <= most and redis.call('OBJECT', 'ENCODING', key) == 'hashtable' then
  local all = redis.call('HGETALL', key)
  local short = true
  for index = 1, #all do
    short = short and #all[index] <= 64
  end
  if short then
    local life = redis.call('PTTL', key)
    redis.call('DEL', key)
    redis.call('HSET', key, unpack(all))
    redis.call('PEXPIRE', key, life)
  end
end
return { page[1], gone - corrupt, corrupt, left }
