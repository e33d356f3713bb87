-- For DuckDB: the numbers of the report, each list in a view of its own. They stand on the schema narrow: versions are
-- the rows that changed, quiet the other ones.
create or replace temporary view counts as
with there as (
  select namesrv, table_name, topic from quiet
  union all select namesrv, table_name, topic from versions where end_reason is null
)
select namesrv, count(distinct topic) as topics, count(*) filter (table_name = 'topic_queues') as queue_rows,
  count(*) filter (table_name = 'brokers') as brokers
from there group by namesrv;

-- What happened in the day before the last ingest. What a first read finds did not come then.
create or replace temporary table events as
with firsts as (
  select namesrv, min(ingested_at) as first from main.log group by namesrv
), day as (
  select max(ingested_at) - interval 1 day as began from main.log
), marked as (
  select *, coalesce(lag(end_reason) over (
    partition by namesrv, topic, table_name, key order by valid_from_epoch, valid_from_revision) = 'CHANGED', false
  ) as follows from versions join firsts using (namesrv)
)
select namesrv, table_name, key, valid_from as moment, 'came' as kind, '' as why
from marked cross join day where not follows and seen_from > greatest(first, began)
union all
select namesrv, table_name, key, valid_to, case end_reason when 'CHANGED' then 'changed' else 'went' end,
  case end_reason when 'CHANGED' then '' else end_reason end
from versions cross join day where seen_to > began;

-- A change at several name servers counts once.
create or replace temporary view changed as
select table_name, count(distinct key) filter (kind = 'came') as came,
  count(distinct key) filter (kind = 'changed') as changed, count(distinct key) filter (kind = 'went') as went
from events group by table_name order by table_name;

create or replace temporary view latest as
select max(moment) as moment, table_name, key, kind, why, list(distinct namesrv order by namesrv) as namesrvs
from events group by table_name, key, kind, why order by moment desc, table_name, key limit 15;

-- Brokers that went at least twice at one name server.
create or replace temporary view flaps as
with each as (
  select namesrv, key, count(*) as times, max(moment) as moment, list(distinct why) as why
  from events where table_name = 'brokers' and kind = 'went' group by namesrv, key having count(*) >= 2
)
select key, max(times) as times, max(moment) as moment, list_sort(list_distinct(flatten(list(why)))) as why,
  list(namesrv order by namesrv) as namesrvs
from each group by key order by times desc, key limit 15;

-- Sums over time. A line has at most 400 points: a plot has pixels for no more.
create or replace temporary view over_time as
with moves as (
  select namesrv, table_name, topic, valid_from as moment, write_queue_nums as queues, 1 as step from quiet
  union all select namesrv, table_name, topic, valid_from, write_queue_nums, 1 from versions
  union all select namesrv, table_name, topic, valid_to, -write_queue_nums, -1 from versions where valid_to is not null
), topics as (
  -- Up when a topic comes to its first broker group, down when it has left its last.
  select namesrv, moment, there::int - lag(there::int, 1, 0) over (partition by namesrv, topic order by moment) as step
  from (
    select namesrv, topic, moment, sum(sum(step)) over (partition by namesrv, topic order by moment) > 0 as there
    from moves where table_name = 'topic_queues' group by namesrv, topic, moment
  )
), steps as (
  select 'topics' as what, namesrv, moment, step from topics
  union all select 'write queues', namesrv, moment, queues from moves where table_name = 'topic_queues'
  union all select 'brokers', namesrv, moment, step from moves where table_name = 'brokers'
), ends as (
  select what, min(moment) as first, greatest(epoch_us(max(moment)) - epoch_us(min(moment)), 1) as width
  from steps group by what
), points as (
  select what, namesrv, (epoch_us(moment) - epoch_us(first)) * 400 // width as point, max(moment) as moment,
    sum(step) as step
  from steps join ends using (what) group by what, namesrv, point
)
select what, namesrv, moment, sum(step) over (partition by what, namesrv order by point)::bigint as value
from points order by what desc, namesrv, point;

create or replace temporary view churn as
select broker_name as name, count(*) as number from versions
where end_reason is not null and broker_name is not null group by all order by number desc, name limit 15;

create or replace temporary view removals as
select table_name || ': ' || end_reason as name, count(*) as number from versions
where end_reason <> 'CHANGED' group by all order by number desc, name limit 15;
