#!lua
-- Solve challenge: check the one answer to a challenge, and bind a right answer to its request.
-- Invariant: at most one request solves a challenge; a wrong answer deletes the challenge; no run extends its expiry.
--
-- KEYS[1] {challenge:name}:answer  string  the right answer's digest; after a right answer, its request too; expires
-- ARGV[1] digest   32 bytes: the digest of the given answer
-- ARGV[2] request  1..64 bytes: the idempotency key of the request
-- Returns {'SOLVED'}   now, or before by the same answer for the same request
--         {'WRONG'}    the answer is wrong, and the challenge is deleted
--         {'UNKNOWN'}  the challenge was never posed, has expired or is deleted
--         {'USED'}     the challenge was solved for another request, or by another answer
-- Retry:  a right answer is right again for the same request; after a wrong answer, the challenge is unknown.
-- Caller: src/stock/door/challenge.rs

local answer_key = KEYS[1]
local digest, request = ARGV[1], ARGV[2]
if not (digest and request) or #digest ~= 32 or #request < 1 or #request > 64 then
  return redis.error_reply('BADARG solve_challenge')
end

local kept = redis.call('GET', answer_key)
if not kept then
  return { 'UNKNOWN' }
elseif #kept < 32 then
  return redis.error_reply('INVARIANT solve_challenge: a digest is cut off')
elseif #kept > 32 then
  if kept == digest .. request then
    return { 'SOLVED' }
  end
  return { 'USED' }
elseif kept ~= digest then
  redis.call('DEL', answer_key)
  return { 'WRONG' }
end
redis.call('SET', answer_key, digest .. request, 'KEEPTTL')
return { 'SOLVED' }
