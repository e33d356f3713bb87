"""RocketMQ's own programs, from Maven Central: brokers, name servers, proxies, clients and mqadmin."""
