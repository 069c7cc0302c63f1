"""
Privacy loss over rounds
========================

A quarter of 100 agents is drawn in each round. The more noise, the more rounds a budget pays for. z is
the noise's deviation, in sensitivities.
"""

import jaxbo

mechanisms = {
    f"z = {z:g}": jaxbo.Mechanism(z, S=11.0, sampling=jaxbo.Poisson(0.25)) for z in (1, 1.5, 3)
}
ax = jaxbo.plotting.privacy_curve(
    mechanisms,
    60,
    delta=jaxbo.accounting.delta_for(100),
    budget=4.0,
    accountant=jaxbo.accounting.moments,
)
