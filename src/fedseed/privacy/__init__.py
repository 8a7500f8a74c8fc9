"""Differential privacy: mechanisms, and what they have spent."""

from fedseed.privacy.base import Mechanism, Noise
from fedseed.privacy.scalars import PrivateScalars, noise_for
from fedseed.privacy.settings import Level, PrivacySettings, Required
from fedseed.privacy.sign import PrivateSign

__all__ = ["Level", "Mechanism", "Noise", "PrivacySettings", "PrivateScalars", "PrivateSign", "Required", "noise_for"]
