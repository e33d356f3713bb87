-- For DuckDB: where name servers disagreed, since when, for how long, and what began it. By one of two clocks: began,
-- ended and stamp are columns of it. A name server is compared from its first snapshot on; one that was lost keeps what
-- was last known of it.
create or replace temporary table disagreements as
with firsts as (
  select namesrv, min({stamp}) as first from main.log where op in ('put', 'remove', 'snapshot') group by namesrv
), compared as (
  select *, hash({content}) as content,
    coalesce(lag(end_reason) over (
      partition by namesrv, topic, table_name, key order by valid_from_epoch, valid_from_revision) = 'CHANGED', false
    ) as follows
  from versions semi join firsts using (namesrv)
), keys as (
  select table_name, key, any_value(cluster_name) as cluster_name, any_value(coalesce(broker_name, broker_addr)) as broker
  from compared group by table_name, key
), happened as (
  select table_name, key, namesrv, {began} as moment, content,
    case when follows then 'CHANGED' else 'CAME' end as what from compared
  union all
  select table_name, key, namesrv, {ended}, null, end_reason from compared where end_reason <> 'CHANGED'
), events as (
  -- Of two events of one name server at one time, the presence counts and not the removal.
  select table_name, key, namesrv, moment, max_by(coalesce(content, 0), content is not null) as content
  from (select * from happened union all select table_name, key, namesrv, first, null, null from keys cross join firsts)
  group by table_name, key, namesrv, moment
), times as (
  select distinct table_name, key, moment from events
), states as (
  select t.table_name, t.key, t.moment, f.namesrv, e.content
  from times t cross join firsts f
  asof left join events e
    on e.table_name = t.table_name and e.key = t.key and e.namesrv = f.namesrv and e.moment <= t.moment
), sides as (
  select table_name, key, moment, count(distinct content) > 1 as differ,
    coalesce(list(namesrv order by namesrv) filter (content <> 0), []) as have,
    coalesce(list(namesrv order by namesrv) filter (content = 0), []) as lack
  from states group by table_name, key, moment
), turns as (
  select *, lead(moment) over k as until
  from (select *, lag(differ, 1, false) over k as before from sides window k as (partition by table_name, key order by moment))
  where differ <> before window k as (partition by table_name, key order by moment)
), causes as (
  select table_name, key, moment, string_agg(cause, '; ' order by cause) as cause from (
    select table_name, key, moment, what || ': ' || string_agg(distinct namesrv, ', ' order by namesrv) as cause
    from happened group by table_name, key, moment, what
  ) group by table_name, key, moment
), absences as (
  -- Nothing is known after the last read before a loss.
  select namesrv, coalesce(lag(ingested_at) over r, {stamp}) as since, op,
    min(case when op in ('back', 'snapshot') then {stamp} end) over (
      r rows between 1 following and unbounded following) as back
  from main.log where kind = 'reads'
  window r as (partition by namesrv order by ingested_at, epoch, revision, op in ('back', 'snapshot'))
), unread as (
  select t.table_name, t.key, t.moment, string_agg(distinct a.namesrv, ', ' order by a.namesrv) as namesrvs
  from turns t join absences a on a.op in ('lost', 'hole') and t.moment > a.since and (a.back is null or t.moment < a.back)
  where t.differ group by t.table_name, t.key, t.moment
)
select table_name, key, coalesce(cluster_name, '') as cluster_name, coalesce(broker, '') as broker, moment as since, until,
  epoch_us(until - moment) / 1e6 as seconds, have, lack,
  coalesce('NOT_READ: ' || namesrvs, cause, 'FIRST_READ') as cause
from turns join keys using (table_name, key)
left join causes using (table_name, key, moment) left join unread using (table_name, key, moment)
where differ;
