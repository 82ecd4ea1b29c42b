"""The smallest job: ``horarun -np 4 python examples/numpy_allreduce.py``."""

import numpy as np

import hora.numpy as hvd

hvd.init()
mine = np.full(4, hvd.rank(), dtype=np.float32)
total = hvd.allreduce(mine, op=hvd.Sum, name="mine")
print(f"rank {hvd.rank()} of {hvd.size()}: sent {mine}, all together {total}")
