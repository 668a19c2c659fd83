"""Words after `mpisgd` that are mistakes, and what the one line that tells so must hold."""

RUN = "train --virtual 2 --steps 1 "
DATA = RUN + "--data idx --data-path "
CIFAR = RUN + "--data cifar10 --data-path "
GRID = "submit --dry-run "

TOML = [
    ("--config bytes.toml", ["bytes.toml", "not UTF-8", "0xff"]),
    ("--config deep.toml", ["deep.toml", "not TOML", "recursion"]),
    ("--config digits.toml", ["digits.toml", "not TOML", "5000 digits"]),
    ("--config same-key.toml", ["same-key.toml", "not TOML", "line 2"]),
    ("--config twice.toml", ["twice.toml: lr", "given twice"]),
    ("--config table.toml", ["table.toml: lr", "{'x': 1}", "a finite number >= 0"]),
    ("--config date.toml", ["date.toml: batch", "2020-01-01", "a whole number >= 1"]),
    ("--config bool.toml", ["bool.toml: batch", "True", "a whole number"]),
    ("--config float.toml", ["float.toml: batch", "32.0", "a whole number"]),
    ("--config list.toml", ["list.toml: algorithm", "['local']", "one of minibatch"]),
    ("--config inf.toml", ["inf.toml: lr", "inf", "finite"]),
    ("--config near.toml", ["near.toml: shedule", "no such option", "did you mean schedule?"]),
    ("--config control.toml", ["control.toml: data-path", "a text that is not empty"]),
    ("--config local.toml", ["local.toml: delay 1", "diloco, gossip do", "mpisgd submit"]),
    ("--config dasgd.toml --algorithm minibatch", ["--tau 4", "minibatch has none", "--config"]),
]
NUMBERS = [
    ("--steps 1_0", ["--steps", "'1_0'", "a whole number"]),
    ("--steps １２", ["--steps", "'１２'", "a whole number"]),
    ("--steps ٣", ["--steps", "'٣'", "a whole number"]),
    ("--lr 1_0", ["--lr", "'1_0'", "a finite number"]),
    ("--hidden 6_4", ["--hidden", "'6_4'", "whole numbers"]),
    ("--step-time 1_0ms", ["--step-time", "'1_0ms'", "a time such as"]),
    ("--step-time 1e300", ["--step-time", "'1e300'", "a time such as"]),
    ("--deadline 1e300", ["--deadline", "'1e300'", "at most 1e+09 s"]),
    ("--steps 1e3", ["--steps", "'1e3'", "a whole number"]),
    (f"--batch {'9' * 5000}", ["--batch", "a whole number >= 1"]),
]
TOGETHER = [
    ("--lr 0 --schedule one-cycle", ["--lr 0.0", "at least 0.0001", "one-cycle"]),
    ("--optimiser rmsprop --nesterov", ["--nesterov", "rmsprop has none", "sgd does"]),
    ("--algorithm async --servers 2", ["--servers 2", "leave a rank for a worker", "ranks: 2"]),
    ("--algorithm backup --backups 1", ["--backups 1", "fewer than the workers, 1"]),
    ("--algorithm softsync --group 2", ["--group 2", "at most the workers, 1"]),
]
STRAGGLERS = [
    ("9:5x", ["--straggler '9:5x'", "ranks that compute are 0 to 1"]),
    ("1-2:5x", ["--straggler '1-2:5x'", "0 to 1"]),
    ("2:die@1", ["--straggler '2:die@1'", "0 to 1"]),
    ("0:0x", ["'0:0x'", "before the x stands a number > 0"]),
    ("0:1e9x", ["'0:1e9x'", "before the x", "up to 1e+06"]),
    ("1-0:2x", ["'1-0:2x'", "ranks go up"]),
    ("0:die@0", ["'0:die@0'", "steps count from 1"]),
    ("pareto", ["'pareto'", "pareto:ALPHA:PROBABILITY"]),
    ("pareto:1:2", ["'pareto:1:2'", "pareto:ALPHA:PROBABILITY"]),
    ("lognormal:inf", ["'lognormal:inf'", "lognormal:SIGMA"]),
    ("shifted:2", ["'shifted:2'", "shifted:SHARE"]),
    ("exponential:1", ["'exponential:1'", "no number behind it"]),
    ("shifted:1_0", ["'shifted:1_0'", "shifted:SHARE"]),
    ("slow", ["'slow'", "terms such as"]),
    ("trace:", ["--straggler", "'trace:'", "names no file"]),
    ("trace:nowhere", ["--straggler trace:nowhere", "No such file"]),
    ("trace:here", ["--straggler trace:here", "Is a directory"]),
    ("trace:ragged.txt", ["trace:ragged.txt", "a row a step, a column a rank"]),
    ("trace:words.txt", ["trace:words.txt", "numbers > 0"]),
    ("trace:nothing.txt", ["trace:nothing.txt", "numbers > 0"]),
    ("trace:endless.txt", ["trace:endless.txt", "up to 1e+06"]),
    ("trace:negative.txt", ["trace:negative.txt", "numbers > 0"]),
    ("trace:bytes.toml", ["trace:bytes.toml", "numbers > 0"]),
]
STEP_TIMES = [
    ("resnet50@", ["--step-time", "'resnet50@'", "name a device", "titanx"]),
    ("@titanx", ["--step-time", "'@titanx'", "nets are", "resnet50"]),
    ("resnet51@titanx", ["'resnet51@titanx'", "nets are", "resnet50"]),
    ("resnet50@abacus", ["--step-time", "'abacus'", "titanx"]),
    ("nowhere.toml", ["'nowhere.toml'", "No such file"]),
    ("deep.toml", ["'deep.toml'", "cannot be read"]),
    ("calibration-none.toml", ["calibration-none", "a file of mpisgd calibrate"]),
    ("calibration-short.toml", ["calibration-short", "a file of mpisgd calibrate"]),
    ("calibration-zero.toml", ["calibration-zero", "a file of mpisgd calibrate"]),
]
IDX = [
    ("idx-none", ["idx-none", "no IDX file", "expected a folder"]),
    ("idx-magic", ["train-images-idx3-ubyte", "not IDX images", "0x89504e47"]),
    ("idx-header", ["train-images-idx3-ubyte", "shorter than the header"]),
    ("idx-cut", ["train-images-idx3-ubyte", "truncated: 15 bytes", "16"]),
    ("idx-long", ["train-images-idx3-ubyte", "longer than the 16 bytes"]),
    ("idx-huge", ["train-images-idx3-ubyte", "far shorter than its header"]),
    ("idx-zero", ["train-images-idx3-ubyte", "there are no images"]),
    ("idx-alone", ["train-labels-idx1-ubyte", "is missing"]),
    ("idx-count", ["train-labels-idx1-ubyte", "3 labels, but 4 images"]),
    ("idx-gzip-cut", ["train-images-idx3-ubyte", "truncated"]),
    ("idx-gzip-sum", ["train-images-idx3-ubyte", "damaged gzip data"]),
    ("idx-test-label", ["test label 7", "idx-test-label", "training labels end at 3"]),
    ("idx-test-size", ["idx-test-size", "differ in size"]),
    ("npz-keys.npz", ["npz-keys.npz", "no array x_train", "['x']"]),
    ("npz-float.npz", ["npz-float.npz", "float64 (4, 2, 2)", "expected uint8"]),
    ("npz-labels.npz", ["npz-labels.npz: y_train", "label -1", "0 to 1048575"]),
    ("npz-pickle.npz", ["npz-pickle.npz", "without pickles"]),
    ("npz-text.npz", ["npz-text.npz", "not a readable npz"]),
    ("npz-cut.npz", ["npz-cut.npz", "not a readable npz"]),
    ("npz-outside.npz", ["npz-outside.npz", "no array x_train"]),
]
CIFARS = [
    ("cifar-none", ["cifar-none", "no training batch", "expected an unpacked folder"]),
    ("cifar-test-only", ["cifar-test-only", "no training batch"]),
    ("cifar-size", ["a.bin", "3072 bytes are no records of 3073"]),
    ("cifar-empty-file", ["a.bin", "0 bytes are no records"]),
    ("cifar-label", ["a.bin", "label 11", "0 to 9"]),
    ("cifar-hundred", ["a.bin", "this is CIFAR-100"]),
    ("cifar-evil", ["data_batch_1", "it asks for", "open", "not loaded from data"]),
    ("cifar-inside", ["data_batch_1", "it asks for", "open", "not loaded from data"]),
    ("cifar-list", ["data_batch_1", "no dictionary"]),
    ("cifar-keys", ["data_batch_1", "expected the keys data and labels", "found: data"]),
    ("cifar-shape", ["data_batch_1", "uint8 (2, 9)", "expected uint8 (samples, 3072)"]),
    ("cifar-type", ["data_batch_1", "float64 (2, 3072)", "expected uint8"]),
    ("cifar-count", ["data_batch_1", "1 labels for 2 images"]),
    ("cifar-ragged", ["data_batch_1", "not a list of whole numbers"]),
    ("cifar-fine", ["data_batch_1", "this is CIFAR-100"]),
    ("cifar-range", ["data_batch_1", "label 1" + 30 * "0", "0 to 9"]),
    ("cifar-text", ["data_batch_1", "not a CIFAR-10 batch"]),
    ("cifar-cut", ["data_batch_1", "not a CIFAR-10 batch"]),
    ("text", ["text", "expected a folder"]),
]
NETWORKS = [
    ("carrier-pigeon", ["--network", "'carrier-pigeon'", "titanx-20g"]),
    ("nowhere.toml", ["--network", "nowhere.toml", "No such file"]),
    ("here.toml", ["--network", "here.toml", "No such file"]),
    ("deep.toml", ["--network", "deep.toml", "recursion"]),
    ("bytes.toml", ["--network", "bytes.toml", "0xff"]),
    ("network-negative.toml", ["--network", "bandwidth_Bps -1", "a number > 0"]),
    ("network-key.toml", ["--network", "'bandwith_Bps'", "keys are"]),
    ("network-text.toml", ["--network", "'1us'"]),
    ("network-preset.toml", ["--network", "'lan'"]),
]
SIMULATE = [
    ("--network network-whole.toml", ["--network", "bandwidth_Bps 999", "a number > 0"]),
    ("--ranks 9000", ["--ranks", "'9000'", "1..8192"]),
    ("--ranks 2:1", ["--ranks", "'2:1'", "2:1 goes down"]),
    ("--ranks ٣", ["--ranks", "'٣'", "numbers of ranks"]),
    ("--ranks nan", ["--ranks", "'nan'", "numbers of ranks"]),
    ("--bytes lots", ["--bytes", "'lots'", "a whole number of bytes"]),
    ("--bytes 9999999999G", ["--bytes", "'9999999999G'"]),
    ("--bytes 4:1", ["--bytes", "'4:1'", "LOW <= HIGH"]),
    ("--chunks 257", ["--chunks", "'257'", "<= 256"]),
    ("--repetitions 1e9", ["--repetitions", "'1e9'", "<= 1e+06"]),
    ("--look-every 0", ["--look-every", "'0'", "more than 0 s"]),
    ("--skew inf", ["--skew", "'inf'", "at most 1e+09 s"]),
    ("--seed=-1", ["--seed", "'-1'", ">= 0"]),
    ("--latency 1e300", ["--latency", "'1e300'", "at most 1e+09 s"]),
    ("--bandwidth 1e400", ["--bandwidth", "'1e400'", "a rate > 0"]),
    ("--bandwidth 1e-300", ["--network", "bandwidth_Bps", "at least 1e-09"]),
    ("--sum-rate 0", ["--sum-rate", "'0'", "a rate > 0"]),
    ("--duplex both", ["--network", "duplex 'both'", "full, half"]),
    ("--progress fast", ["--network", "progress 'fast'", "looks, perfect"]),
    ("--noise 1e9", ["--network", "noise", "at most 10"]),
    ("--ranks-per-bus 3", ["--network", "ranks_per_bus 3", "a divisor of"]),
    ("--algorithm star", ["--algorithm", "'star'", "butterfly"]),
    ("--algorithm hierarchical:star", ["--algorithm", "star", "ring"]),
    ("--format xml", ["--format", "'xml'", "table, json, csv"]),
    ("--goal no/x.goal", ["--goal", "'no/x.goal'", "there is no folder 'no'"]),
    ("--goal x --ranks 2,4", ["--goal", "'x'", "one algorithm, rank count and size"]),
]
PREDICT = [
    ("--device abacus", ["--device", "'abacus'", "titanx"]),
    ("--device device-text.toml", ["--device device-text.toml", "peak_GFLOPS", "'fast'"]),
    ("--device device-key.toml", ["--device device-key.toml", "'colour'", "keys are"]),
    ("--device device-short.toml", ["--device device-short.toml", "lacks bandwidth_GBps"]),
    ("--device deep.toml", ["--device", "'deep.toml'", "not TOML", "recursion"]),
    ("--device digits.toml", ["--device", "'digits.toml'", "not TOML"]),
    ("--device name=x,peak_GFLOPS=1,bandwidth_GBps=0,memory_GB=1", ["bandwidth_GBps '0'", "> 0"]),
    ("--device name=x,peak_GFLOPS=1e-99,bandwidth_GBps=1,memory_GB=1", ["'1e-99'", "too small"]),
    ("--net resnet51", ["--net", "'resnet51'", "resnet50"]),
    ("--batch 1e300", ["--batch", "'1e300'", "<= 1e+12"]),
    ("--batch 8 --ranks 16 --scaling strong", ["--ranks 16", "at most --batch 8"]),
    ("--ranks 999999999", ["--ranks", "'999999999'", "1..1000000"]),
    ("--ranks 1:1000000", ["--ranks", "at most 10000 numbers of ranks"]),
    ("--samples 0", ["--samples", "'0'", ">= 1"]),
    ("--delay 5 --tau 2", ["--delay 5", "at most tau = 2"]),
    ("--peak-share 2", ["--peak-share", "'2'", "<= 1"]),
    ("--bytes 0", ["--bytes 0", "> 0"]),
    ("--topology ring", ["--topology", "'ring'", "leader"]),
    ("--rounding up", ["--rounding", "'up'", "ceil"]),
    ("--compute magic", ["--compute", "'magic'", "paleo"]),
    ("--algorithms adam", ["--algorithms", "'adam'", "dasgd"]),
    ("--show all", ["--show", "'all'", "epochs"]),
    ("--figure x.bmp", ["--figure", "'x.bmp'", ".png"]),
    ("--network name=x,bandwidth_Bps=nan", ["--network", "bandwidth_Bps", "nan", "> 0"]),
]
TIMES = "--step-time 1ms --all-reduce-time 1ms "
ADVISE = [
    ("", ["--step-time", "needed unless --net"]),
    ("--step-time 0 --all-reduce-time 1ms", ["--step-time", "'0'", "more than 0 s"]),
    (
        "--step-time 1ms --all-reduce-time 1e300",
        ["--all-reduce-time", "'1e300'", "at most 1e+09 s"],
    ),
    ("--step-time 1e-25s --all-reduce-time 1s", ["1e-25", "too small beside the all-reduce"]),
    (TIMES + "--spread 1", ["--spread", "'1'", "<= 0.999"]),
    (TIMES + "--device k80", ["--device", "it goes with --net"]),
    (TIMES + "--net resnet50", ["--step-time", "give times or --net"]),
    ("--from nowhere.h5", ["nowhere.h5", "No such file"]),
    ("--from text.h5", ["text.h5", "not an HDF5 file"]),
    ("--from bench.h5", ["--from", "'bench.h5'", "a run of minibatch"]),
    ("--from whole.h5", ["--from", "'whole.h5'", "a run of minibatch", "dasgd"]),
    ("--from network-key.toml --ranks 2 --batch 8 --bytes 1M", ["--from", "'bandwith_Bps'"]),
]
GRIDS = [
    ("nowhere.toml", ["nowhere.toml", "No such file"]),
    ("deep.toml", ["deep.toml", "not TOML"]),
    ("grid-key.toml", ["grid-key.toml: run", "no such key", "runs"]),
    ("grid-none.toml", ["grid-none.toml: scaling", "one of weak, strong"]),
    ("grid-ranks.toml", ["ranks", "on how many ranks"]),
    ("grid-option.toml", ["options.batsh", "no such option", "did you mean batch?"]),
    ("grid-list.toml", ["options", "[1]", "a table"]),
    ("grid-straggler.toml", ["--straggler '5:2x'", "0 to 1"]),
    ("grid-time.toml", ["slurm.time", "'99999999'", "at most 366 days"]),
    ("grid-setting.toml", ["slurm.partitions", "no such setting", "did you mean partition?"]),
    ("grid-line.toml", ["slurm.account", "on one line"]),
    ("grid-launcher.toml", ["slurm.launcher", "'rm -rf'", "mpiexec"]),
]
RESULTS = [
    ("replay nowhere.h5", ["nowhere.h5", "No such file"]),
    ("replay here", ["here", "is a folder"]),
    ("replay text.h5", ["text.h5", "not an HDF5 file"]),
    ("replay empty.h5", ["empty.h5", "is empty"]),
    ("replay cut.h5", ["cut.h5", "is damaged"]),
    ("replay pickle.h5", ["pickle.h5", "not an HDF5 file"]),
    ("replay foreign.h5", ["foreign.h5", "no result of mpisgd"]),
    ("replay newer.h5", ["newer.h5", "schema version 999"]),
    ("replay type.h5", ["type.h5", "/steps/loss", "float32, not float64"]),
    ("replay shape.h5", ["shape.h5", "/steps/loss", "(40, 4)", "['step', 'rank']"]),
    ("replay link.h5", ["link.h5", "/steps/loss", "not followed"]),
    ("replay group.h5", ["group.h5", "has no /evaluation"]),
    ("replay whole.h5", ["whole.h5", "no complete run with parameter servers"]),
    ("report here", ["FILES", "'here'", "holds no result"]),
    ("report whole.h5 --targets 2", ["--targets", "'2'", "an accuracy above 0"]),
    ("report whole.h5 --html here", ["--html", "'here'", "is a folder"]),
    ("report whole.h5 --html text.h5", ["--html", "'text.h5'", "exists", "--overwrite"]),
    ("report whole.h5 --trace no/x.json", ["--trace", "'no/x.json'", "no folder 'no'"]),
    ("report whole.h5 --figures text.h5", ["--figures", "'text.h5'", "is a file; name a folder"]),
    ("report whole.h5 --picture gif", ["--picture", "'gif'", "svg"]),
]
CHECKPOINTS = [
    ("--checkpoint c --checkpoint-every 0", ["--checkpoint-every", "'0'", "30s or 5min"]),
    ("--checkpoint c --checkpoint-every soon", ["--checkpoint-every", "'soon'", "30s or 5min"]),
    ("--checkpoint-every 5", ["--checkpoint-every", "'5'", "needs --checkpoint FILE"]),
    ("--checkpoint no/c", ["--checkpoint", "'no/c'", "no folder 'no'"]),
    ("--checkpoint .", ["--checkpoint", "'.'", "must name a file"]),
    ("--resume auto", ["--resume", "'auto'", "needs --checkpoint FILE"]),
    ("--resume nowhere", ["--resume", "'nowhere'", "no such file"]),
    ("--resume text", ["--resume", "text", "is no checkpoint"]),
    ("--resume npz-keys.npz", ["--resume", "npz-keys.npz", "no checkpoint"]),
    ("--resume whole.h5", ["--resume", "whole.h5", "is no checkpoint"]),
    ("--resume pickle.h5", ["--resume", "pickle.h5", "is no checkpoint"]),
]
# Devices and pipes as files: refused at once, and nobody waits for what never comes.
ENDLESS = [
    (words, [words.split()[-1], "is no regular file"])
    for file in ("/dev/zero", "pipe.toml")
    for words in (
        RUN + f"--config {file}",
        RUN + f"--straggler trace:{file}",
        f"submit --dry-run {file}",
        f"replay {file}",
        RUN + f"--resume {file}",
        RUN + f"--steps 2 --resume auto --checkpoint {file}",
    )
] + [
    (DATA + f"endless/{name}", ["train-labels-idx1-ubyte", "is missing"])
    for name in ("zero", "pipe.toml")
] + [
    (RUN + f"--data arrays --data-path endless/{name}", ["train_inputs.npy", "no regular file"])
    for name in ("zero", "pipe.toml")
] + [
    (words + "pipe.toml", ["pipe.toml", "is no regular file"])
    for words in (
        RUN + "--network ", "simulate --network ", "predict --network ", "predict --device ",
        RUN + "--step-time ",
    )
] + [
    (f"advise --backups --ranks 4 --step-time 1s --iterations {file}", [file, "no regular file"])
    for file in ("zero.json", "pipe.json")
]  # fmt: skip
BOMBS = [
    (RUN + "--config key.toml", ["key.toml", "a key of more than 32 parts"]),
    (RUN + "--config quoted-key.toml", ["quoted-key.toml", "a key of more than 32 parts"]),
    (RUN + "--config large.toml", ["large.toml", "larger than 1 MiB"]),
    (RUN + "--config hex.toml", ["hex.toml: batch", "0xfff", "a whole number"]),
    ("simulate --network key.toml", ["key.toml", "a key of more than 32 parts"]),
    (GRID + "key.toml", ["key.toml", "a key of more than 32 parts"]),
    ("advise --backups --ranks 4 --step-time 1s --iterations large.json", ["larger than 1 MiB"]),
    (DATA + "idx-bomb", ["train-images-idx3-ubyte.gz", "unpack to 5824000000", "no data do"]),
    (DATA + "idx-bomb --data-samples 100", ["train-images-idx3-ubyte.gz", "no data do"]),
    (CIFAR + "cifar-bomb --data-samples 100", ["a.bin.gz", "unpack to", "no data do"]),
    (DATA + "npz-bomb.npz --data-samples 100", ["npz-bomb.npz", "unpack to", "no data do"]),
    ("replay bomb.h5", ["bomb.h5", "more than the file can hold"]),
]
WORDS = [
    *((RUN + f"--blas-threads {n}", ["--blas-threads", n[:9], "a whole number in 1..4096"])
      for n in ("²", "9" * 5000, "0", "4097")),
    ("bench allreduce --blas-threads ²", ["--blas-threads '²'", "1..4096"]),
    ("calibrate --blas-threads 0", ["--blas-threads '0'", "1..4096"]),
    (RUN + "--resume /", ["--resume '/'", "must name a file"]),
    (RUN + "--resume .", ["--resume '.'", "must name a file"]),
    (RUN + "--lr=--", ["--lr '--'", "is no value"]),
    ("simulate --network=--", ["--network '--'", "is no value"]),
    ("report --format=-- whole.h5", ["--format '--'", "is no value"]),
    ("simulate --bytes -4M", ["--bytes '-4M'", "a whole number of bytes"]),
    ("predict --bytes -4M", ["--bytes '-4M'", "a whole number of bytes"]),
    (RUN + "--lr -1", ["--lr '-1'", "a finite number >= 0"]),
    (RUN + "--lr -inf", ["--lr '-inf'", "a finite number"]),
    (RUN + "--step-time -1ms", ["--step-time '-1ms'", "a time such as"]),
    *((f"advise --backups --ranks 4 --step-time 1s --straggler {text}",
       [f"--straggler '{text}'", "ranks that compute are 0 to 3"]) for text in ("9:5x", "9:die@3")),
    (RUN + "--straggler 0:2x,9:die@1", ["--straggler '9:die@1'", "ranks that compute are 0 to 1"]),
    ("advise --backups --ranks 4 --step-time 1s --straggler 2-9:5x", ["'2-9:5x'", "0 to 3"]),
]  # fmt: skip
LABELS = [
    (RUN + f"--data {data} --data-path {data}-labels-{name}{end}", [f"label {value}", words])
    for data, end in (("idx", ".npz"), ("arrays", ""))
    for name, value, words in (
        ("signed", 2**63, "0 to 1048575"), ("all", 2**64 - 1, "0 to 1048575"),
        ("many", 2_000_000_000, "0 to 1048575"), ("negative", -1, "0 to 1048575"),
        ("float", 0.5, "whole numbers from 0"),
    )
]  # fmt: skip
OTHERS = [
    ("verify --ranks 1_0", ["--ranks", "'1_0'", "1:64"]),
    ("verify --ranks 1:99999", ["--ranks", "'1:99999'", "1..4096"]),
    ("lab --hosts 0 -- true", ["--hosts 0", "from 1 to 250"]),
    ("lab --hosts many -- true", ["--hosts", "'many'"]),
    ("lab --rate fast -- true", ["--rate", "'fast'", "200mbit"]),
    ("lab", ["lab", "name a command to run after --"]),
    ("bench", ["BENCHMARK"]),
    ("bench allreduce --sizes lots", ["--sizes", "'lots'", "a whole number of bytes"]),
    ("bench allreduce --sizes 3 --dtype float32", ["--sizes", "'3'", "not a whole number of"]),
    ("bench allreduce --algorithms star", ["--algorithms", "'star'", "butterfly"]),
    ("bench allreduce --min-repetitions 0", ["--min-repetitions", "'0'", "1..1000000"]),
    ("bench allreduce --deadline 0", ["--deadline", "'0'", "at least 0.01 s"]),
    ("bench allreduce --time-budget soon", ["--time-budget", "'soon'", "a time such as"]),
    ("bench allreduce --chunks 0", ["--chunks", "'0'", "whole numbers"]),
    ("calibrate --repetitions 1", ["--repetitions", "'1'", "6..100000"]),
    ("calibrate --batches 0", ["--batches", "'0'", "whole numbers >= 1"]),
    ("train --tua 4", ["--tua", "did you mean --tau?"]),
    ("train --algorithm gosip", ["--algorithm 'gosip'", "did you mean gossip?"]),
    ("train --virtual 2 --network lap", ["--network 'lap'", "did you mean lab?"]),
    ("predict --scaling wek", ["--scaling 'wek'", "did you mean weak?"]),
    ("train --schedul=constant", ["--schedul", "did you mean --schedule?"]),
    ("bench allreduce --size 4", ["--size", "did you mean --sizes?"]),
]
