"""One rank's training: site, worker, means, parameters, optimisers, rates, evaluation."""
