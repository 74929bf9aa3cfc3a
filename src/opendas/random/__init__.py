"""Exact, keyed, addressable noise: laws, sampler tables, keys and sources."""

from opendas.random.distributions import DiscreteGaussian, DiscreteLaplace, NoiseDistribution
from opendas.random.keys import RunKey
from opendas.random.noise import NoiseSource, pack_addresses
from opendas.random.tables import SamplerTable

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplace",
    "NoiseDistribution",
    "NoiseSource",
    "RunKey",
    "SamplerTable",
    "pack_addresses",
]
