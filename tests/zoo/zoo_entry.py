from nttzoo.experiments import comparison

NAME = "lenet300-mnist5k-2pct-global"


ASKED = comparison.Comparison(
    model="lenet300",
    data="mnist5k",
    methods=("ntt", "random", "dense"),
    densities=(0.02, 0.055),
    schemes=("global",),
    seeds=(0,),
    train_epochs=1,
    change={"epochs": 1, "mask_every": 20},
)
