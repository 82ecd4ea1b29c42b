"""Texts of jobs whose hosts come and go, where Horovod keeps them."""

RESET_LIMIT_EXCEEDED_MESSAGE = (
    "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
)
