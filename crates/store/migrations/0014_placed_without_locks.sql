-- Why: places are found without locks, and everything that an allocation is gets written by one statement without a transaction around
-- it. Such a statement has to undo itself when what it was told is no longer so, and can only do that by failing.
-- An old binary goes on with `pick_nodes`, and passes by the nodes that such a statement has locked.

-- Fails, as somebody does who has lost a race, unless it was won. Whoever is told that runs it again.
CREATE FUNCTION require_won(won boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF won IS NOT TRUE THEN
        RAISE EXCEPTION 'somebody else was faster' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN true;
END;
$$;
