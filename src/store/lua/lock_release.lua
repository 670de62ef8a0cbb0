-- Give back a lock that is still mine.
--
-- KEYS
--   [1] string: the owner's token
-- ARGV
--   [1] my token
-- Returns 1, or 0 where the lock is somebody else's or nobody's
--
-- Example, lock "a": KEYS { "task:lock:sweep:{0}" }  ARGV { "a" }  ->  1
assert(#KEYS == 1, 'lock_release: want 1 key')
assert(#ARGV == 1, 'lock_release: want 1 arg')

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
