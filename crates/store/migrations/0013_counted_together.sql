-- Why: what is free was counted for one node after the other, by a function each. A statement that touches several nodes counts them
-- all at once now, and counting one is cheaper too.
-- An old binary notices nothing: the counts are the same.

-- Writes down how much of these nodes is free, from their claims. The locks come first, in order, and the count in a statement of its
-- own, so that it sees what was committed while it waited.
CREATE FUNCTION count_free_of(touched uuid[]) RETURNS void LANGUAGE plpgsql
-- By indexes: it is planned once, and often when there is no claim yet.
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM 1 FROM nodes WHERE id = ANY (touched) ORDER BY id FOR NO KEY UPDATE;
    UPDATE nodes
       SET free_slots = CASE WHEN nodes.whole THEN counted.untouched::int ELSE counted.in_all END,
           free_numa_max = CASE WHEN nodes.whole THEN counted.untouched::int ELSE counted.on_one END
      FROM unnest(touched) AS of_node (id)
     CROSS JOIN LATERAL (
            SELECT claimed.slots IS NULL AS untouched, coalesce(sum(free.slots), 0) AS in_all, coalesce(max(free.slots), 0) AS on_one
              FROM (
                    SELECT array_agg(slot_id) AS slots, bool_or(slot_id IS NULL) AS wholly
                      FROM claims
                     WHERE node_id = of_node.id AND status <> 'freed'
                   ) AS claimed
              LEFT JOIN LATERAL (
                    SELECT count(*) AS slots
                      FROM slots
                     WHERE slots.node_id = of_node.id
                       AND claimed.wholly IS NOT TRUE
                       AND (claimed.slots IS NULL OR slots.id <> ALL (claimed.slots))
                     GROUP BY slots.numa_node
                   ) AS free ON true
             GROUP BY claimed.slots
           ) AS counted
     WHERE nodes.id = of_node.id;
END;
$$;

CREATE OR REPLACE FUNCTION count_free_of_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM count_free_of(ARRAY(SELECT DISTINCT node_id FROM changed));
    RETURN NULL;
END;
$$;

CREATE OR REPLACE FUNCTION count_free_of_moved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched uuid[];
BEGIN
    touched := ARRAY(
        SELECT DISTINCT changed.node_id
          FROM changed
          JOIN former ON former.id = changed.id
         WHERE (changed.status = 'freed') <> (former.status = 'freed'));
    -- A claim that moves otherwise changes nothing.
    IF cardinality(touched) > 0 THEN
        PERFORM count_free_of(touched);
    END IF;
    RETURN NULL;
END;
$$;

DROP FUNCTION count_free(uuid);
