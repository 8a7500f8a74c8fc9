"""Differential privacy: mechanisms, and what they have spent."""

from fedseed.privacy.base import Mechanism
from fedseed.privacy.scalars import PrivateScalars
from fedseed.privacy.settings import PrivacySettings
from fedseed.privacy.sign import PrivateSign

__all__ = ["Mechanism", "PrivacySettings", "PrivateScalars", "PrivateSign"]
