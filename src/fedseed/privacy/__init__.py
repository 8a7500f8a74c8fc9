"""Differential privacy: mechanisms, accounts of what they have spent, and wrappers of a method."""

from fedseed.privacy.protection import (
    find_misfit,
    mechanism_of,
    protect,
    protection_of,
    settings_of,
)
from fedseed.privacy.scalars import PrivateScalars, noise_for
from fedseed.privacy.settings import Level, PrivacySettings
from fedseed.privacy.sign import PrivateSign

__all__ = [
    "Level",
    "PrivacySettings",
    "PrivateScalars",
    "PrivateSign",
    "find_misfit",
    "mechanism_of",
    "noise_for",
    "protect",
    "protection_of",
    "settings_of",
]
