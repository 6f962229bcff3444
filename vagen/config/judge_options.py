"""The judge's section of an experiment: what is rewarded, by which judge, and how it is guarded."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section
from vagen.config.client_options import ClientConfig


class LLMJudgeConfig(ClientConfig):
    """The language model that judges: any OpenAI-compatible endpoint, and how it may be used.

    The limits are those of one run. Where several processes judge (`engine: verl`), each gets its
    share.
    """

    base_url: str | None = None
    """Base of the API, such as `http://vagen-judge.vagen.svc:8000/v1`; needed where a
    language model is asked."""
    model: str | None = None
    """Name of the model as the endpoint knows it; it names the cache's answers too, so that one
    name should stand for one model."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the key; null sends none."""
    temperature: float = Field(default=0.1, ge=0.0)
    """0 is greedy."""
    max_tokens: PositiveInt = 400
    """Most tokens of an answer."""
    json_schema: bool = True
    """Ask the server to hold answers to a JSON schema. A server that refuses is asked without."""
    requests_per_second: PositiveFloat | None = 70.0
    """Most requests per second; null is no limit."""
    deadline: PositiveFloat = 600.0
    """Seconds for the statements of one batch; those without a verdict then have none."""

    @property
    def request_rate(self) -> float | None:
        """See `ClientConfig`."""
        return self.requests_per_second

    @property
    def where(self) -> str:
        """Where it is asked, for messages."""
        return f"at {self.base_url}"


class SecondJudgeConfig(Section):
    """A second judge on some turns: how far the two agree is logged as `judge/kappa`."""

    fraction: Fraction = 0.0
    """Share of the judged turns; 0 is no second judge."""
    type: Literal["rule", "llm"] = "rule"
    """Which judge it is."""
    llm: LLMJudgeConfig = LLMJudgeConfig()


class ScheduleConfig(Section):
    """How the judge's rewards change over the run."""

    type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the decay of both weights."""
    iterations: PositiveInt | None = None
    """Iterations until `floor` is reached; null takes `trainer.total_training_steps`."""
    floor: Fraction = 0.0
    """Factor of the weights at its end."""
    max_return_share: Annotated[float, Field(gt=0.0)] | None = None
    """Most standard deviation that a trajectory's judge rewards may have, as a share of that of its
    other rewards (.1 is strict); above it all of a batch are scaled down. null is no cap."""


class InformationConfig(Section):
    """Pay a text for what it says about its own state: its score minus its mean score against
    states of other episodes of the batch. A text that fits every state earns nothing.
    """

    enable: bool = False
    """Deduct that mean in training; needs rules for every environment."""
    states: PositiveInt = 16
    """Least number of states of other episodes that every text is compared with; more where the
    batch has few texts."""


class RepetitionConfig(Section):
    """Charge for texts that come more often than the states they are right in: the share of near
    duplicates in the batch minus the share of states that the text fits, where that is positive.
    """

    enable: bool = False
    """Deduct the charge in training."""
    weight: float = Field(default=0.5, ge=0.0)
    """Deduction from the score, per share."""
    top_k: Annotated[int, Field(ge=0), DIGEST_EXEMPT] = 0
    """VAGEN's own charge, beside or instead: of the so many texts that a batch says most (5), each
    that is right by less than .35 scores -.1. 0 is off."""
    similarity: Fraction = 0.7
    """Share of words that near duplicates have in common; numbers and directions all are."""


class AlarmConfig(Section):
    """Sound the alarm where the judge's scores rise while success falls: `judge/alarm`."""

    enable: bool = True
    """Compare the two over the run; the alarm changes nothing."""
    window: Annotated[int, Field(ge=4)] = 20
    """Iterations that are compared, their later half with their earlier; fewer sound none."""
    min_rise: float = Field(default=0.05, ge=0.0)
    """Least rise of the mean score between the halves."""
    min_fall: float = Field(default=0.05, ge=0.0)
    """Least fall of success between the halves."""


class CalibrationConfig(Section):
    """How good the judge has to have been measured to be for a run to start."""

    path: str | None = None
    """`calibration.json` that `vagen judge calibrate` wrote of this judge; null asks for none."""
    min_precision: Fraction = 0.98
    """Least share of right statements among those that it accepts, in every environment."""
    min_recall: Fraction = 0.95
    """Least share of right statements that it accepts, in every environment."""
    on_failure: Literal["refuse", "warn"] = "refuse"
    """What to do about a judge that falls short."""


class JudgeConfig(Section):
    """World-model reasoning reward."""

    use_state_reward: bool = True
    """Reward what the agent says it sees and predicts."""
    type: Literal["rule", "llm", "cascade"] = "rule"
    """Which judge scores the statements: rules, a language model, or rules first and the language
    model for what they cannot read. Before all of them stands the gate."""
    observation_weight: float = Field(default=0.5, ge=0.0)
    """beta_s: reward of a fully right `<observation>`."""
    prediction_weight: float = Field(default=0.5, ge=0.0)
    """beta_w: reward of a fully right `<prediction>`."""
    above_chance: Annotated[bool, DIGEST_EXEMPT] = False
    """Pay in training for what a text says beyond the best one that never changes, measured by
    `build` on the environment's own levels: (score - blind) / (1 - blind), 0 below it. Off: pay the
    score, as the papers do, of which a constant text has its share."""
    sampling_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the turns that are judged, chosen by trajectory and turn; the others get no judge
    reward."""
    max_absent: Fraction = 0.5
    """A batch in which a larger share of the verdicts asked for could not be had fails its step,
    which can be repeated; verdicts that were had are kept."""
    gate: bool = True
    """Refuse texts that hedge, contradict themselves, speak to the judge, ... Without it, rules
    also pay for recall alone, whatever else is claimed: a judge to study how it is satisfied
    without being told anything; not to train with."""
    schedule: ScheduleConfig = ScheduleConfig()
    information: InformationConfig = InformationConfig()
    repetition: RepetitionConfig = RepetitionConfig()
    alarm: AlarmConfig = AlarmConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    llm: LLMJudgeConfig = LLMJudgeConfig()
    second: SecondJudgeConfig = SecondJudgeConfig()

    def endpoints(self) -> dict[str, LLMJudgeConfig]:
        """The endpoints that the judges ask, by where they stand in the configuration."""
        found = {}
        if self.use_state_reward and self.type != "rule":
            found["judge.llm"] = self.llm
        if self.use_state_reward and self.second.fraction > 0 and self.second.type == "llm":
            found["judge.second.llm"] = self.second.llm
        return found
