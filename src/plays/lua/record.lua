#!lua
-- Count plays, each exactly once however often it is sent. On one server a call takes plays of any
-- partitions, which shares its fixed cost; in a cluster those of one.
--
-- KEYS
--   for each video
--     set: videos of its partition with plays not yet in the database
--     string: plays of the video not yet in the database
--     HyperLogLog: unique viewers of the video
--     then for each play of it
--       string: there while this viewer's play of the video is remembered (only if it has a viewer)
--       string: there while this playback is remembered (only if it has a play id)
-- ARGV
--   [1] seconds for which a play is remembered
--   [2] seconds for which unique viewers are kept after the last play
--   [3] the call's token, a number: kept with what is remembered, so that a caller who never heard the
--       answer can look up what this call counted
--   then for each video
--     the video
--     how many plays of it follow
--     then for each play
--       its viewer, "" for none
--       "1" if it has a play id, else "0"
-- Returns one element a play, in order
--   1     counted
--   2     counted, but the sketch of the video's unique viewers couldn't take those of this call
--   0     counted before
--   text  not counted, and nothing is remembered of it: what Redis refused it with
--
-- With a viewer and a play id both must be new. What a play that isn't counted has set is deleted
-- again, so that sending it once more counts it; so is what all plays of a video have set that can't
-- be counted, and even those that were counted before are answered with the refusal. A
-- video is marked before its plays are counted: a mark too many is cleaned up by the flush, plays
-- without a mark would be stranded.
--
-- Example, nothing there yet; a play of "42" by "ann" named "x1", then the same again:
--   KEYS { "video:views:dirty:{0}", "video:views:delta:{0}:42", "video:views:uv:{0}:42",
--          "video:views:seen:{0}:42:u:ann", "video:views:seen:{0}:42:p:x1",
--          "video:views:seen:{0}:42:u:ann", "video:views:seen:{0}:42:p:x1" }
--   ARGV { "1800", "2592000", "77", "42", "2", "ann", "1", "ann", "1" }  ->  { 1, 0 }, and both
--   seen keys hold "77"

-- Locals are twice as fast as globals, and this is run for every play.
local keys, args, try = KEYS, ARGV, redis.pcall
local life, sketch_life, token = args[1], args[2], args[3]

assert(#args >= 3, 'record: want 3 args, 2 a video and 2 a play')
local wanted, at = 0, 4
while at <= #args do
  local plays = tonumber(args[at + 1])
  assert(plays and plays >= 1, 'record: want a number of plays behind each video')
  wanted = wanted + 3
  for arg = at + 2, at + 2 * plays, 2 do
    wanted = wanted + (args[arg] ~= '' and 1 or 0) + (args[arg + 1] == '1' and 1 or 0)
  end
  at = at + 2 + 2 * plays
end
assert(at == #args + 1, 'record: want 3 args, 2 a video and 2 a play')
assert(wanted == #keys, 'record: want 3 keys a video, and 1 or 2 a play')

-- What Redis refused a command with, nil where it took it.
local function refusal(reply)
  return type(reply) == 'table' and reply.err or nil
end

local function forget(seen, first)
  for index = #seen, first, -1 do
    try('DEL', seen[index])
    seen[index] = nil
  end
end

local results = {}
local key, arg = 1, 4
while arg <= #args do
  local video, dirty, delta, sketch = args[arg], keys[key], keys[key + 1], keys[key + 2]
  local first, last = #results + 1, #results + tonumber(args[arg + 1])
  arg, key = arg + 2, key + 3
  -- Keys that were set here, and who is to be added to the sketch.
  local seen, viewers, counted = {}, {}, 0
  for play = first, last do
    local viewer = args[arg]
    local ahead, result = #seen, 1
    local next_key = key + (viewer ~= '' and 1 or 0) + (args[arg + 1] == '1' and 1 or 0)
    for index = key, next_key - 1 do
      local set = try('SET', keys[index], token, 'NX', 'EX', life)
      if not set or set.err then
        result = set and set.err or 0
        break
      end
      seen[#seen + 1] = keys[index]
    end
    if result == 1 then
      counted = counted + 1
      if viewer ~= '' then
        viewers[#viewers + 1] = viewer
      end
    else
      forget(seen, ahead + 1)
    end
    results[play] = result
    arg, key = arg + 2, next_key
  end
  if counted > 0 then
    local refused = refusal(try('SADD', dirty, video)) or refusal(try('INCRBY', delta, counted))
    if refused then
      forget(seen, 1)
      for play = first, last do
        results[play] = refused
      end
    elseif #viewers > 0 then
      -- They are counted: nothing may fail them any more.
      if refusal(try('PFADD', sketch, unpack(viewers))) then
        for play = first, last do
          results[play] = results[play] == 1 and 2 or results[play]
        end
      else
        try('EXPIRE', sketch, sketch_life)
      end
    end
  end
end
return results
