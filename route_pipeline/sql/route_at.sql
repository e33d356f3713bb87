with base as (
  select namesrv, min(snapshot) as snapshot from known
  where known_from <= {asked_at} and known_to >= {asked_at} group by namesrv
), latest as (
  select l.*, row_number() over (
    partition by l.namesrv, l.table_name, l.key order by l.epoch desc, l.revision desc, l.from_snapshot desc) as place
  from log l join base b on b.namesrv = l.namesrv and b.snapshot = l.snapshot
  where l.kind = 'changes' and l.changed_at <= {asked_at}
    and ((l.table_name = 'topic_queues' and l.topic = {of_topic}) or l.table_name = 'broker_groups')
), queues as (
  select * from latest where place = 1 and op = 'put' and table_name = 'topic_queues'
), groups as (
  select * from latest where place = 1 and op = 'put' and table_name = 'broker_groups'
), spans as (
  select namesrv, min(known_from) as known_from, max(known_to) as known_to from known group by namesrv
)
select s.namesrv,
  case when q.topic is not null then 'route' when k.whole then 'no route' else 'not known' end as answer,
  q.cluster_name, q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm, g.broker_addrs,
  s.known_from, s.known_to
from spans s
left join base b on b.namesrv = s.namesrv
left join known k on k.namesrv = b.namesrv and k.snapshot = b.snapshot
left join queues q on q.namesrv = s.namesrv
left join groups g on g.namesrv = q.namesrv and g.cluster_name = q.cluster_name and g.broker_name = q.broker_name
