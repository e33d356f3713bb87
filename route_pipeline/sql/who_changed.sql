-- For DuckDB: the latest 1,000 versions of a topic's queues, and of its groups and their brokers.
with queues as (
  from history where topic = $topic and table_name = 'topic_queues'
), holders as (
  select distinct namesrv, cluster_name, broker_name from queues
)
from queues union all by name
select h.* from history h semi join holders using (namesrv, cluster_name, broker_name)
where h.topic is null and h.table_name in ('broker_groups', 'brokers')
order by valid_from desc, valid_from_revision desc limit 1000
