"""Elastic training with PyTorch: a state of models and optimizers, and a sampler that goes on."""

from hora.elastic import ObjectState, State, run
from hora.torch.elastic.sampler import ElasticSampler
from hora.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
