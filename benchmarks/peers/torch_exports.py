"""Peer: twenty usual networks of PyTorch, small, each exported in five ways, as .onnx files. Argument: folder."""

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE = (3, 16, 16)


class Net(nn.Module):
    """A function of modules and an input."""

    def __init__(self, function: Callable[..., Tensor], **modules: nn.Module):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _residual(channels: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1),
        norm(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        norm(channels),
    )
    return Net(lambda net, x: F.relu(x + net.body(x)), body=body)


def _inverted(channels: int, width: int, act: type[nn.Module]) -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(channels, width, 1, bias=False),
        nn.BatchNorm2d(width),
        act(),
        nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
        nn.BatchNorm2d(width),
        act(),
        nn.Conv2d(width, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
    )
    return Net(lambda net, x: x + net.body(x), body=body)


def _squeeze(channels: int) -> nn.Module:
    gate = nn.Sequential(nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels), nn.Sigmoid())
    return Net(lambda net, x: x * net.gate(x.mean((2, 3)))[:, :, None, None], gate=gate)


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def _dense(net: nn.Module, x: Tensor) -> Tensor:
    x = torch.cat([x, F.relu(net.first(x))], 1)
    x = torch.cat([x, F.relu(net.second(x))], 1)
    return net.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _attention(net: nn.Module, x: Tensor) -> Tensor:
    b, t, d = x.shape
    q, k, v = net.qkv(x).reshape(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
    weights = (q @ k.transpose(-2, -1) / (d // 2) ** 0.5).softmax(-1)
    return net.out((weights @ v).transpose(1, 2).reshape(b, t, d))


class VisionTransformer(nn.Module):
    """Patches, a class token, one block, a head."""

    def __init__(self, d: int = 16):
        super().__init__()
        self.patches = nn.Conv2d(3, d, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, d))
        self.places = nn.Parameter(torch.randn(1, 17, d))
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
        self.attention = Net(_attention, qkv=nn.Linear(d, 3 * d), out=nn.Linear(d, d))
        self.mlp = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))
        self.head = nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        x = x + self.attention(self.norms[0](x))
        return self.head((x + self.mlp(self.norms[1](x)))[:, 0])


def _convnext(net: nn.Module, x: Tensor) -> Tensor:
    y = net.mlp(net.norm(net.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
    return net.head((x + y).mean([-2, -1]))


def _recurrent(kind: type[nn.Module]) -> nn.Module:
    layer = kind(12, 16, batch_first=True)
    return Net(lambda net, x: net.head(net.layer(x)[0][:, -1]), layer=layer, head=nn.Linear(16, 5))


def models() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """{name: (network, shape of one input)}."""
    chain = nn.Sequential
    conv = nn.Conv2d
    return {
        "mlp": (chain(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), (8, 8)),
        "mlp_norm": (
            chain(nn.Linear(20, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(), nn.Linear(32, 10), nn.LogSoftmax(-1)),
            (20,),
        ),
        "autoencoder": (chain(nn.Linear(20, 8), nn.LeakyReLU(0.2), nn.Linear(8, 20), nn.Sigmoid()), (20,)),
        "lenet5": (
            chain(
                *(conv(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), conv(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
                *(nn.Flatten(), nn.Linear(64, 10)),
            ),
            (1, 16, 16),
        ),
        "conv_view": (
            Net(
                lambda net, x: net.head(F.max_pool2d(F.relu(net.conv(x)), 2).view(x.size(0), -1)),
                conv=conv(3, 4, 3, padding=1),
                head=nn.Linear(256, 10),
            ),
            IMAGE,
        ),
        "vgg": (
            chain(
                *(conv(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
                *(conv(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
                *(nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(32, 10)),
            ),
            IMAGE,
        ),
        "resnet": (
            chain(
                *(conv(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
                *(_residual(8, nn.BatchNorm2d), _residual(8, nn.BatchNorm2d), *_head(8)),
            ),
            IMAGE,
        ),
        "resnet_gn": (chain(conv(3, 8, 3, padding=1), _residual(8, lambda c: nn.GroupNorm(2, c)), *_head(8)), IMAGE),
        "mobilenet_v2": (chain(conv(3, 8, 3, 2, 1), nn.ReLU6(), _inverted(8, 16, nn.ReLU6), *_head(8)), IMAGE),
        "mobilenet_v3": (
            chain(conv(3, 8, 3, 2, 1), nn.Hardswish(), _inverted(8, 16, nn.Hardswish), _squeeze(8), *_head(8)),
            IMAGE,
        ),
        "efficientnet": (
            chain(conv(3, 8, 3, 2, 1), nn.SiLU(), _inverted(8, 16, nn.SiLU), _squeeze(8), *_head(8)),
            IMAGE,
        ),
        "densenet": (
            Net(_dense, first=conv(3, 8, 3, padding=1), second=conv(11, 8, 3, padding=1), head=nn.Linear(19, 10)),
            IMAGE,
        ),
        "convnext": (
            Net(
                _convnext,
                depthwise=conv(3, 3, 7, padding=3, groups=3),
                norm=nn.LayerNorm(3),
                mlp=chain(nn.Linear(3, 12), nn.GELU(), nn.Linear(12, 3)),
                head=nn.Linear(3, 10),
            ),
            IMAGE,
        ),
        "vit": (VisionTransformer(), IMAGE),
        "transformer": (
            chain(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), nn.Flatten(), nn.Linear(96, 4)),
            (6, 16),
        ),
        "conv1d": (
            chain(
                *(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 8, 3, dilation=2), nn.ELU()),
                *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5)),
            ),
            (4, 20),
        ),
        "unet": (
            Net(
                lambda net, x: net.out(torch.cat([x, net.up(F.relu(net.down(x)))], 1)),
                down=conv(3, 8, 3, 2, 1),
                up=nn.ConvTranspose2d(8, 4, 2, 2),
                out=conv(7, 2, 1),
            ),
            IMAGE,
        ),
        "upsample": (
            chain(
                *(conv(3, 4, 3, padding=1), nn.InstanceNorm2d(4, affine=True), nn.PReLU(4)),
                *(nn.Upsample(scale_factor=2), conv(4, 2, 3, padding=1), nn.Softplus()),
            ),
            (3, 8, 8),
        ),
        "gru": (_recurrent(nn.GRU), (7, 12)),
        "lstm": (_recurrent(nn.LSTM), (7, 12)),
    }


def main(folder: str) -> None:
    """Exports all networks by both exporters, with a batch of one and of any size."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    any_size = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    ways = {
        "script-14": (1, {"dynamo": False, "opset_version": 14}),
        "script-17-any": (3, {"dynamo": False, "opset_version": 17, **any_size}),
        "script-20-any": (3, {"dynamo": False, "opset_version": 20, **any_size}),
        "dynamo": (1, {"dynamo": True, "external_data": False}),
        "dynamo-any": (
            3,
            {"dynamo": True, "external_data": False, "dynamic_shapes": ({0: torch.export.Dim("batch")},)},
        ),
    }
    for name, (model, shape) in models().items():
        for way, (batch, options) in ways.items():
            target = Path(folder) / f"{name}.{way}.onnx"
            example = (torch.randn(batch, *shape),)
            torch.onnx.export(model.eval(), example, str(target), verbose=False, **options)


if __name__ == "__main__":
    main(sys.argv[1])
