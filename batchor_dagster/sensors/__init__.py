"""The advance sensor and the materialize sensor, and the op jobs that come with them."""
