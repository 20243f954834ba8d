"""Where each routed expert of a layer is computed: planning as an operation."""
