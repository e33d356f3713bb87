-- The questions about the past, in SQL that DuckDB, Spark and Trino read. They stand on one view, log, of the table.
-- A snapshot has a number, the larger the later; rows of it and of the changes after it have it in the column snapshot.
-- What a snapshot does not have was not there.

-- From when to when the log knows each name server, by snapshot. Within it, what the log does not have was not there.
create or replace {temporary} view known as
select namesrv, snapshot,
  min(case when op = 'snapshot' then changed_at end) as known_from,
  max(case when op in ('snapshot', 'changes', 'kept') then changed_at end) as known_to,
  min(case when op = 'snapshot' then ingested_at end) as seen_from,
  min(case when op = 'snapshot' then epoch end) as epoch,
  min(case when op = 'snapshot' then revision end) as revision,
  coalesce(bool_and(case when op = 'snapshot' then warm end), true) as whole
from log where kind = 'reads' and snapshot > 0
group by namesrv, snapshot having min(case when op = 'snapshot' then changed_at end) is not null;

-- Every version of every row: what was there, from when to when, and why it ended (SCD type 2). valid_to is null for
-- what is still there. Ordered by revision, as clocks may step. Equal rows that follow one another are one version.
create or replace {temporary} view history as
with points as (
  select namesrv, snapshot, epoch, revision, known_from, seen_from,
    lag(snapshot) over s as snapshot_before, lead(snapshot) over s as snapshot_after,
    lead(epoch) over s as epoch_after, lead(revision) over s as revision_after,
    lead(known_from) over s as gone_at, lead(seen_from) over s as gone_seen
  from known window s as (partition by namesrv order by snapshot)
), ordered as (
  select l.*, p.snapshot_before, p.snapshot_after, p.epoch_after, p.revision_after, p.gone_at, p.gone_seen,
    l.from_snapshot or (l.epoch = p.epoch and l.revision <= p.revision) as of_snapshot,
    {row}({content}) as content
  from log l left join points p on p.namesrv = l.namesrv and p.snapshot = l.snapshot
  where l.kind = 'changes'
), marked as (
  select o.*,
    case when lag(op) over k = op and (op = 'remove' or content is not distinct from lag(content) over k)
      and (lag(snapshot) over k = snapshot or (lag(snapshot) over k = snapshot_before and of_snapshot))
      then 0 else 1 end as begins
  from ordered o
  window k as (partition by namesrv, topic, table_name, key order by snapshot, epoch, revision, from_snapshot)
), numbered as (
  select m.*, sum(begins) over (
    partition by namesrv, topic, table_name, key order by snapshot, epoch, revision, from_snapshot
    rows between unbounded preceding and current row) as version
  from marked m
), versions as (
  select n.*, e.snapshot_after as last_snapshot_after, e.epoch_after as last_epoch_after,
    e.revision_after as last_revision_after, e.gone_at as last_gone_at, e.gone_seen as last_gone_seen
  from (
    select *, max(snapshot) over (partition by namesrv, topic, table_name, key, version) as last_snapshot from numbered
  ) n
  left join points e on e.namesrv = n.namesrv and e.snapshot = n.last_snapshot
  where n.begins = 1
), followed as (
  select v.*, lead(op) over k as next_op, lead(reason) over k as next_reason, lead(changed_at) over k as next_at,
    lead(ingested_at) over k as next_seen, lead(epoch) over k as next_epoch, lead(revision) over k as next_revision,
    lead(snapshot) over k = last_snapshot
      or coalesce(lead(snapshot) over k = last_snapshot_after and lead(of_snapshot) over k, false) as is_followed
  from versions v window k as (partition by namesrv, topic, table_name, key order by version)
)
select namesrv, table_name, key, topic, cluster_name, broker_name, broker_id, broker_addr, read_queue_nums,
  write_queue_nums, perm, topic_sys_flag, reported_perm, broker_addrs, zone_name, enable_acting_master,
  unconfirmed_broker_ids, ha_server_addr, data_version_timestamp_millis, data_version_counter,
  data_version_state_version, generation, has_channel, heartbeat_timeout_millis, unconfirmed, labels,
  filter_servers, static_mapping, snapshot, epoch as valid_from_epoch, revision as valid_from_revision, changed_at as valid_from,
  ingested_at as seen_from,
  case when is_followed then next_epoch else last_epoch_after end as valid_to_epoch,
  case when is_followed then next_revision else last_revision_after end as valid_to_revision,
  case when is_followed then next_at else last_gone_at end as valid_to,
  case when is_followed then next_seen else last_gone_seen end as seen_to,
  case when is_followed and next_op = 'put' then 'CHANGED' when is_followed then next_reason
    when last_snapshot_after is not null then 'NOT_IN_SNAPSHOT' end as end_reason
from followed where op = 'put';

-- Only what a table is about, of its versions.
create or replace {temporary} view queue_history as
select namesrv, topic, cluster_name, broker_name, read_queue_nums, write_queue_nums, perm, reported_perm,
  valid_from, valid_to, end_reason from history where table_name = 'topic_queues';

create or replace {temporary} view group_history as
select namesrv, cluster_name, broker_name, broker_addrs, zone_name, valid_from, valid_to, end_reason
from history where table_name = 'broker_groups';

create or replace {temporary} view broker_history as
select namesrv, cluster_name, broker_name, broker_id, broker_addr, labels, data_version_counter, valid_from, valid_to,
  end_reason
from history where table_name = 'brokers';
