-- Write something and read it back: a Redis that only answers PING is not ready.
--
-- KEYS
--   [1] string: what was last written
-- ARGV
--   [1] what to write
--   [2] life in seconds
-- Returns what was read
--
-- Example: KEYS { "task:probe:{0}" }  ARGV { "x", "60" }  ->  "x"
assert(#KEYS == 1, 'probe: want 1 key')
assert(#ARGV == 2, 'probe: want 2 args')

redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return redis.call('GET', KEYS[1])
