"""Weight tensor → matrices → spectrum → low-rank part → metrics (METHOD §1–3)."""
