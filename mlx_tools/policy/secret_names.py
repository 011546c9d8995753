"""Names that tell that what is assigned to them is secret: ``password``, ``api_key``, a vendor's.

A name is looked for in lower case, one character after the other, by a pattern that branches on
the first letter, so that a text is walked through once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from string import ascii_lowercase, ascii_uppercase
from typing import Final

_WORDS: Final = {
    "password": "password passwd passwort passphrase pass* pwd*",
    "api_key": (
        "api-key access-key auth-key account-key app-key application-key client-key consumer-key"
        " encryption-key license-key master-key private-key secret-key shared-key signing-key"
        " storage-key service-key subscription-key write-key read-key admin-key user-key key*"
    ),
    "token": "token",
    "session_cookie": "session* session-id session-key sessid sess* sid*",
    "secret": "secret auth* sig* signature* webhook",
    "credential": (
        "credential creds bearer jwt* pat* adafruit adobe aiven airtable alchemy algolia alibaba"
        " amplitude apify artifactory asana atlassian auth0 authress azure backblaze beamer"
        " bintray bitbucket bitly bittrex buildkite cisco clickup cloudflare cloudinary codecov"
        " cohere coinbase coinmarketcap confluence confluent contentful contribsys coveralls"
        " datadog deepgram deepl deepseek digitalocean discord dnsimple droneci dropbox etherscan"
        " etsy facebook fastly figma finicity finnhub firebase flickr freshbooks freshdesk gitee"
        " github gitlab gitter gocardless grafana heroku hubspot imagekit infura instagram"
        " intercom jfrog jira kraken kucoin lastfm launchdarkly linear linkedin linked-in lob*"
        " looker mailchimp mailgun mapbox mapquest mattermost meraki message-bird mistral mixpanel"
        " monday netlify new-relic new-york-times nytimes okta onfido openai opensea openweather"
        " opsgenie optimizely pagerduty paypal phrase pinata plaid postmark private-ai pubnub"
        " pusher quay* rapidapi rollbar scaleway scrapingbee segment sendbird sendgrid sentry"
        " shodan sidekiq slack snyk sonar splunk spotify squarespace strava stripe sumo surge"
        " tatum telegr travis-ci travis trello twilio twitch twitter typeform unsplash vercel"
        " virustotal wakatime weatherapi xray* yahoo yandex zendesk zerobounce zoom"
    ),
}
"""Words by the kind of secret; ``-`` stands for any mark that joins words, or none; a word with
``*`` must not be a part of a longer one."""

_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
_JOINS: Final = str.maketrans("", "", "-_. ")

_KIND_OF: Final = {
    word.rstrip("*").translate(_JOINS): kind
    for kind, words in reversed(_WORDS.items())
    for word in words.split()
}
_WHOLE: Final = frozenset(
    word.rstrip("*") for words in _WORDS.values() for word in words.split() if word.endswith("*")
)
_NOT_TOKENS: Final = ("iz", "is")


def _pattern() -> str:
    by_letter: dict[str, set[str]] = defaultdict(set)
    for words in _WORDS.values():
        for word in words.split():
            word = word.rstrip("*")
            by_letter[word[0]].add(word[1:])
    branches = []
    for letter, rests in sorted(by_letter.items()):
        longest_first = sorted(rests, key=lambda rest: (-len(rest), rest))
        escaped = (re.escape(rest).replace("\\-", "[-_. ]?") for rest in longest_first)
        branches.append(f"{letter}(?:{'|'.join(escaped)})")
    return "|".join(branches)


_NAME = re.compile(_pattern())


def lowered(text: str) -> str:
    """The text with its ASCII letters in lower case, no shorter and no longer."""
    return text.translate(_LOWER)


def names_in(lower: str) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of every name in a text that is in lower case."""
    at = 0
    while found := _NAME.search(lower, at):
        start, end = found.span()
        word = found[0]
        at = end
        if word in _WHOLE and (
            lower[start - 1 : start].isalpha() or lower[end : end + 1].isalpha()
        ):
            at = start + 1
        elif word == "token" and lower.startswith(_NOT_TOKENS, end):
            continue
        else:
            yield _KIND_OF[word.translate(_JOINS)], start, end
