-- For DuckDB: most rows are in every snapshot, always the same, and never change. The questions about what changed look
-- at the other ones only: the schema narrow has the view log of them, and later the views over it.
create temporary table restless as
select table_name, key from log where kind = 'changes'
group by table_name, key
having not bool_and(from_snapshot)
  or count(*) <> (select count(*) from known)
  or count(distinct hash({content})) > 1;
create temporary view quiet as
select namesrv, table_name, key, any_value(topic) as topic, any_value(write_queue_nums) as write_queue_nums,
  min(changed_at) as valid_from
from main.log anti join restless using (table_name, key) where kind = 'changes' group by namesrv, table_name, key;
create schema narrow;
create view narrow.log as
select * from main.log where kind <> 'changes'
union all by name
select l.* from main.log l semi join restless using (table_name, key) where l.kind = 'changes';
set schema = 'narrow';
