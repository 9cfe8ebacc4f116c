"""Attribution: why a model wrote one token and not another."""
