-- Why: whoever makes a fact true may do in the same transaction what a consumer would do on hearing it, when that is only to start a
-- run or to tell one. Then nobody has to bring it there.
-- An old binary delivers such a fact to the consumer too, who finds the run started: a start is recognised, and so is a word.

-- The consumers who have heard of it already: what they would do was done in the transaction that made it true.
ALTER TABLE outbox_events ADD COLUMN heard text[];
