-- Walk through shards of viewers, one after the other, and drop those who left.
--
-- Scan and delete are one atomic step, so a beat can't fall between them. A time in the future
-- (a clock was set back) becomes the present, or that viewer would stay for as long as the jump.
-- It ends with the last shard, or once there was work enough, or behind a shard it isn't through
-- with: none is looked at before the one ahead of it is done. One that Redis refuses to walk is
-- passed over. On a cluster all shards of a call must be of one slot.
--
-- KEYS
--   hashes: viewer -> last beat, Unix seconds; in the order in which they are walked
-- ARGV
--   [1] cursor in the first of them, "0" to begin
--   [2] deadline, Unix seconds: a viewer whose last beat is earlier is dropped
--   [3] now, Unix seconds: a last beat that is later is set to it
--   [4] how many fields of a long hash to look at in one step, about
--   [5] life in seconds for a hash that has none
--   [6] a hashtable of at most so many short fields is rewritten: Redis never turns one back into
--       a listpack by itself, and that takes a fifth of the memory; "0" for never
--   [7] how much work is enough: a field is 1, a hash 8, an empty one 2
-- Returns for each hash that it came to { cursor, removed, corrupt, left }, all in one list
--   cursor   "0" when the walk through it is complete; what Redis said where it refused
--   removed  viewers dropped
--   corrupt  fields dropped because their value was no number
--   left     viewers now in the hash
--
-- Example, hash { a = "100", b = "900" }, deadline 400:
--   KEYS { "video:online:42:0" }  ARGV { "0", "400", "1000", "500", "750", "0", "1000" }
--   ->  { "0", 1, 0, 1 }
assert(#KEYS >= 1, 'prune: want at least 1 key')
assert(#ARGV == 7, 'prune: want 7 args')

local call = redis.call
local deadline, now, step = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local life, rewritten, enough = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local work = 0
-- Times are few and viewers are many: what is known of one needn't be found out again.
local verdicts = {}

local function judge(time)
  local seen, verdict = tonumber(time), 'stays'
  if not seen then
    verdict = 'corrupt'
  elseif seen < deadline then
    verdict = 'stale'
  elseif seen > now then
    verdict = 'early'
  end
  verdicts[time] = verdict
  return verdict
end

-- Deals with fields that were read; how many were removed, and how many of these were corrupt.
local function drop(key, page)
  local stale, count, corrupt = nil, 0, 0
  for index = 2, #page, 2 do
    local time = page[index]
    local verdict = verdicts[time] or judge(time)
    if verdict ~= 'stays' then
      if verdict == 'early' then
        call('HSET', key, page[index - 1], ARGV[3])
      else
        stale, count = stale or {}, count + 1
        stale[count] = page[index - 1]
        corrupt = corrupt + (verdict == 'corrupt' and 1 or 0)
      end
    end
  end
  -- A page may repeat a field: what counts as removed is what HDEL says. unpack has a limit.
  local gone = 0
  for first = 1, count, 1000 do
    gone = gone + call('HDEL', key, unpack(stale, first, math.min(first + 999, count)))
  end
  return gone, corrupt
end

local function rewrite(key)
  local all = call('HGETALL', key)
  for index = 1, #all do
    if #all[index] > 64 then
      return
    end
  end
  local left = call('PTTL', key)
  call('DEL', key)
  call('HSET', key, unpack(all))
  call('PEXPIRE', key, left)
end

local function walk(key, cursor)
  local length = call('HLEN', key)
  if length == 0 then
    work = work + 2
    return '0', 0, 0, 0
  end
  work = work + 8
  local gone, corrupt, left = 0, 0, 0
  if cursor == '0' and length <= step then
    gone, corrupt = drop(key, call('HGETALL', key))
    work = work + length
    left = length - gone
  else
    repeat
      local page = call('HSCAN', key, cursor, 'COUNT', step)
      local dropped, spoilt = drop(key, page[2])
      cursor, gone, corrupt = page[1], gone + dropped, corrupt + spoilt
      work = work + math.max(step, #page[2] / 2)
    until cursor == '0' or work >= enough
    left = call('HLEN', key)
  end
  if left > 0 and call('TTL', key) == -1 then
    call('EXPIRE', key, life)
  end
  if cursor == '0' and left > 0 and left <= rewritten and call('OBJECT', 'ENCODING', key) == 'hashtable' then
    rewrite(key)
  end
  return cursor, gone - corrupt, corrupt, left
end

local result, filled = {}, 0
for index = 1, #KEYS do
  local done, cursor, removed, corrupt, left = pcall(walk, KEYS[index], index == 1 and ARGV[1] or '0')
  if not done then
    cursor, removed, corrupt, left = cursor.err or cursor, 0, 0, 0
  end
  result[filled + 1], result[filled + 2], result[filled + 3], result[filled + 4] = cursor, removed, corrupt, left
  filled = filled + 4
  if work >= enough or (done and cursor ~= '0') then
    break
  end
end
return result
