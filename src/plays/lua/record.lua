#!lua
-- Count plays of one partition, each exactly once however often it is sent.
--
-- KEYS
--   [1] set: videos with plays not yet in the database
--   then for each play
--     string: plays of its video not yet in the database
--     HyperLogLog: unique viewers of its video
--     string: there while this viewer's play of the video is remembered (only if it has a viewer)
--     string: there while this playback is remembered (only if it has a play id)
-- ARGV
--   [1] seconds for which a play is remembered
--   [2] seconds for which unique viewers are kept after the last play
--   [3] the call's token, a number: kept with what is remembered, so that a caller who never heard the
--       answer can look up what this call counted
--   then for each play
--     its video
--     its viewer, "" for none
--     "1" if it has a play id, else "0"
-- Returns one element a play, in order
--   1     counted
--   2     counted, but the sketch of unique viewers couldn't take its viewer
--   0     counted before
--   text  not counted, and nothing is remembered of it: what Redis refused it with
--
-- With a viewer and a play id both must be new. What a play that isn't counted has set is deleted
-- again, so that sending it once more counts it. The video is marked before its plays are counted:
-- a mark too many is cleaned up by the flush, plays without a mark would be stranded.
--
-- Example, nothing there yet; a play of "42" by "ann" named "x1", then the same again:
--   KEYS { "video:views:dirty:{0}",
--          "video:views:delta:{0}:42", "video:views:uv:{0}:42",
--          "video:views:seen:{0}:42:u:ann", "video:views:seen:{0}:42:p:x1",
--          "video:views:delta:{0}:42", "video:views:uv:{0}:42",
--          "video:views:seen:{0}:42:u:ann", "video:views:seen:{0}:42:p:x1" }
--   ARGV { "1800", "2592000", "77", "42", "ann", "1", "42", "ann", "1" }  ->  { 1, 0 }, and both
--   seen keys hold "77"
assert(#ARGV >= 3 and #ARGV % 3 == 0, 'record: want 3 args and 3 a play')
local wanted = 1
for arg = 4, #ARGV, 3 do
  wanted = wanted + 2 + (ARGV[arg + 1] ~= '' and 1 or 0) + (ARGV[arg + 2] == '1' and 1 or 0)
end
assert(#KEYS == wanted, 'record: want 1 key, and 2 to 4 a play')

-- Keys the play at hand has set.
local made = {}

local function count(video, viewer, delta, sketch, first, last)
  for key = first, last do
    if not redis.call('SET', KEYS[key], ARGV[3], 'NX', 'EX', ARGV[1]) then
      return 0
    end
    made[#made + 1] = KEYS[key]
  end
  redis.call('SADD', KEYS[1], video)
  redis.call('INCRBY', delta, 1)
  -- It is counted from here on: nothing below may fail it.
  if viewer == '' then
    return 1
  end
  local added = redis.pcall('PFADD', sketch, viewer)
  if type(added) == 'table' then
    return 2
  end
  redis.pcall('EXPIRE', sketch, ARGV[2])
  return 1
end

local results = {}
local key = 2
for arg = 4, #ARGV, 3 do
  local viewer = ARGV[arg + 1]
  local last = key + 1 + (viewer ~= '' and 1 or 0) + (ARGV[arg + 2] == '1' and 1 or 0)
  made = {}
  local ran, result = pcall(count, ARGV[arg], viewer, KEYS[key], KEYS[key + 1], key + 2, last)
  if not ran then
    result = type(result) == 'table' and result.err or tostring(result)
  end
  if result ~= 1 and result ~= 2 then
    for _, set in ipairs(made) do
      redis.pcall('DEL', set)
    end
  end
  results[#results + 1] = result
  key = last + 1
end
return results
