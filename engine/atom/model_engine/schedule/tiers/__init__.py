"""The scheduler's part of the KV cache's tiers below the device."""
