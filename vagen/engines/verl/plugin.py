"""What verl loads in every Ray process (`VERL_USE_EXTERNAL_MODULES`): our parts, by their names.

verl imports this while it is being imported itself: only names are registered here, the modules
behind them load when they are used.
"""

import vagen.engines.verl.platform  # noqa: F401
