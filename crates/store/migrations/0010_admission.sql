-- Why: requests that come together are placed together. Each look into the index finds as many nodes as they need, instead of one
-- look for each of them.
-- An old binary goes on with `pick_node`, which stays: whoever waits for a place does it alone.

-- The nodes that are worth a look, locked, with what they have free. What is asked for comes in kinds: so many requests for as many
-- slots, of one SKU with one image in one region. For each kind nodes are found as `pick_node` finds one: on one NUMA node first
-- (`on_one`), then with the fewest left over. Nodes that others are looking at are passed by, and nobody is waited for: a kind for
-- which nothing is found has to be asked for alone. One that truly fits nowhere has a row without a node.
-- Kinds of one market (SKU, region, image) come one after the other, the largest first: what is left over of the nodes of a larger
-- one is counted for the smaller ones before more nodes are looked for.
CREATE FUNCTION pick_nodes(regions text[], skus text[], images text[], wanted smallint[], requests integer[])
RETURNS TABLE (kind integer, node uuid, name text, on_one boolean, slots uuid[], indexes smallint[], numas smallint[])
LANGUAGE plpgsql
-- The same plan for whatever is asked: to plan anew for each look would take ten times as long as to look. And by indexes, also
-- while a table is still so small that the plan was made to read all of it: it is kept when the table has grown.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    most    smallint;
    missing integer;
    each    integer;
    fit     integer;
    found   uuid[];
    picked  uuid[];
    taken   uuid[] := '{}';
    lefts   integer[] := '{}';
BEGIN
    FOR k IN 1..cardinality(wanted) LOOP
        SELECT nodes.free_slots INTO most
          FROM nodes
         WHERE nodes.sku = skus[k] AND nodes.region = regions[k] AND nodes.status = 'ready' AND nodes.free_slots > 0
         ORDER BY nodes.free_slots DESC
         LIMIT 1;
        IF most IS NULL OR most < wanted[k] THEN
            RETURN QUERY SELECT k, NULL::uuid, NULL::text, NULL::boolean, NULL::uuid[], NULL::smallint[], NULL::smallint[];
            CONTINUE;
        END IF;
        missing := requests[k];
        IF k > 1 AND (skus[k], regions[k], images[k]) IS DISTINCT FROM (skus[k - 1], regions[k - 1], images[k - 1]) THEN
            lefts := '{}';
        END IF;
        FOR i IN 1..cardinality(lefts) LOOP
            fit := least(missing, lefts[i] / wanted[k]);
            lefts[i] := lefts[i] - fit * wanted[k];
            missing := missing - fit;
        END LOOP;
        FOR pass IN 1..2 LOOP
            EXIT WHEN missing <= 0;
            picked := '{}';
            FOR free IN wanted[k]..most LOOP
                EXIT WHEN missing <= 0;
                each := free / wanted[k];
                -- Two statements, so that each has one range of the index, in its order. The image is asked for as a value: as EXISTS
                -- it would be a join with every node that has it, because nobody knows how small the limit is.
                IF pass = 1 THEN
                    found := ARRAY(
                        SELECT nodes.id
                          FROM nodes
                         WHERE nodes.sku = skus[k] AND nodes.region = regions[k] AND nodes.status = 'ready' AND nodes.free_slots > 0
                           AND nodes.free_slots = free AND nodes.free_numa_max >= wanted[k]
                           AND nodes.id <> ALL (taken)
                           AND (SELECT true FROM node_images WHERE node_images.node_id = nodes.id AND node_images.image = images[k])
                         ORDER BY nodes.free_numa_max, nodes.id
                         LIMIT (missing + each - 1) / each
                           FOR NO KEY UPDATE SKIP LOCKED);
                ELSE
                    found := ARRAY(
                        SELECT nodes.id
                          FROM nodes
                         WHERE nodes.sku = skus[k] AND nodes.region = regions[k] AND nodes.status = 'ready' AND nodes.free_slots > 0
                           AND nodes.free_slots = free AND nodes.free_numa_max < wanted[k]
                           AND nodes.id <> ALL (taken)
                           AND (SELECT true FROM node_images WHERE node_images.node_id = nodes.id AND node_images.image = images[k])
                         ORDER BY nodes.free_numa_max DESC, nodes.id DESC
                         LIMIT (missing + each - 1) / each
                           FOR NO KEY UPDATE SKIP LOCKED);
                END IF;
                picked := picked || found;
                taken := taken || found;
                FOR i IN 1..cardinality(found) LOOP
                    fit := least(missing, each);
                    lefts := lefts || (free - fit * wanted[k])::integer;
                    missing := missing - fit;
                END LOOP;
            END LOOP;
            -- In a statement of its own, after the locks: it sees every claim that was there before them.
            RETURN QUERY
                SELECT k, nodes.id, nodes.name, pass = 1, free.slots, free.indexes, free.numas
                  FROM unnest(picked) AS id
                  JOIN nodes USING (id)
                 CROSS JOIN LATERAL (
                        SELECT array_agg(slots.id ORDER BY slots.slot_index) AS slots,
                               array_agg(slots.slot_index ORDER BY slots.slot_index) AS indexes,
                               array_agg(slots.numa_node ORDER BY slots.slot_index) AS numas
                          FROM slots
                         WHERE slots.node_id = nodes.id
                           -- By the node's own claims: as NOT EXISTS it is a join, which may be planned while there are no claims, and then
                           -- reads all there ever were.
                           AND slots.id <> ALL (ARRAY(
                                SELECT claims.slot_id
                                  FROM claims
                                 WHERE claims.node_id = nodes.id AND claims.status <> 'freed' AND claims.slot_id IS NOT NULL))
                       ) AS free;
        END LOOP;
    END LOOP;
END;
$$;

-- For the same reason: it is planned once, and often when there is no claim yet.
ALTER FUNCTION count_free(uuid) SET enable_seqscan = off;
