"""Periods of the launcher's elastic side, where Horovod keeps them and programs set them.

The hosts of a Hora job are fixed, so nothing is looked up again and these have no effect yet.
"""

DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
ELASTIC_TIMEOUT_SECS = 600
