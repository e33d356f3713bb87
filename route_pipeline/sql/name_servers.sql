-- For DuckDB: how far each name server has been read, and the interval that the log knows.
with latest as (
  select *, row_number() over (partition by namesrv order by batch desc,
    array_position(['kept', 'back', 'changes', 'snapshot', 'lost', 'hole'], op) desc) as place
  from log where kind = 'reads' and epoch <> ''
), spans as (
  select namesrv, min(known_from) as known_from, max(known_to) as known_to from known group by namesrv
)
select namesrv, epoch, revision, ingested_at, known_from, known_to,
  op in ('lost', 'hole') or (op = 'kept' and reason <> 'up') as lost
from latest left join spans using (namesrv) where place = 1 order by namesrv
